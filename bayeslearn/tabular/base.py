"""What the regressor and the classifier share.

They are what `fit` never is: they scale columns of x and y to mean 0 and standard deviation 1, and
answer in the units of y. A row's weight multiplies its log-likelihood: a weight of 2 is the row
twice, a weight of 0 a row that is not there. Where every step uses all rows, the result depends on
neither the order of rows nor on whether a row is repeated or weighted, bit for bit (see
`FitOptions.merge_rows`).
"""

from __future__ import annotations

import dataclasses
import numbers
import os
import time
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np

from bayeslearn.algorithms.base import Algorithm
from bayeslearn.algorithms.ensemble import Composite
from bayeslearn.algorithms.mile import MILE
from bayeslearn.data.rows import Rows
from bayeslearn.data.scaling import RankScaling, Scaling, TableScaling
from bayeslearn.duration import seconds_of
from bayeslearn.errors import check_positive, check_whole, refuse
from bayeslearn.families.base import ClosedForm
from bayeslearn.inference.api import fit
from bayeslearn.inference.arguments import check_algorithm, is_auto
from bayeslearn.inference.chains import num_cores
from bayeslearn.inference.options import Checkpoint, Devices, FitEvent, FitOptions
from bayeslearn.models.likelihoods.base import Likelihood
from bayeslearn.models.model import Model
from bayeslearn.models.networks import MLP
from bayeslearn.models.protocols import Network
from bayeslearn.precision import inside_double_precision
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.results.posterior import Posterior
from bayeslearn.tabular.calibrating import (
    CROSS,
    MANY_ROWS,
    CrossCalibration,
    calibrated,
    check_calibration,
    cross_calibrate,
    resolve,
    warnings_of,
)
from bayeslearn.tabular.candidates import (
    HIERARCHICAL,
    LINEAR,
    PRIOR_SCALES,
    Candidate,
    Noise,
    PriorScale,
    allows_chains,
    network_sizes,
    num_weights,
    prior_of,
)
from bayeslearn.tabular.folds import KeyedRows, Keys, held_to_stop, hold_out, keys_of, merged
from bayeslearn.tabular.frame_inputs import TableInputs, check_options, validated
from bayeslearn.tabular.json_values import JSON
from bayeslearn.tabular.selection import Problem, Selection, select, stored_or
from bayeslearn.tabular.sklearn_parts import check_is_fitted, check_random_state
from bayeslearn.tabular.stored_estimator import StoredEstimator
from bayeslearn.tabular.timing import Deadline

Callback = Callable[[FitEvent], object]


class BayesianNN(TableInputs, StoredEstimator):
    """Base of regressor and classifier (abstract)."""

    chosen_: dict[str, JSON]
    candidates_: list[dict[str, JSON]]
    baseline_: dict[str, dict[str, float]]
    cross_calibration_: dict[str, Any]
    likelihood_: str
    default_prior_scale: ClassVar[float]
    prior_scales: ClassVar[tuple[float, ...]] = PRIOR_SCALES
    task: ClassVar[str]

    hidden: Any
    activation: Any
    method: Any
    prior_scale: float | str
    budget: float | str | None
    num_steps: int | str
    batch_size: int | str
    validation_fraction: float | None
    num_samples: int
    starts: Any
    random_state: Any
    progress: bool | None
    network: Network | None
    calibration: str | None
    calibration_fraction: float

    # What differs

    def _read(
        self, X: Any, y: Any, classes: Any = None, first: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """X and y checked, y as numbers: (rows,) or (rows, columns)."""
        raise NotImplementedError

    def _likelihood(self, noise: Noise, scaling: Scaling | None) -> Likelihood:
        """The likelihood of y, scaled."""
        raise NotImplementedError

    def _noises(self, is_chosen_from: bool, y: np.ndarray) -> tuple[Noise, ...]:
        """Kinds of noise to try for a y that is not scaled; see `_sizes`."""
        return (None,)

    def _notes(self, y: np.ndarray) -> tuple[str, ...]:
        """Notes on y, for the posterior."""
        return ()

    def _scaling_of_y(self, rows: Rows) -> Scaling | None:
        """How y is scaled; None: not at all."""
        return None

    # Fitting

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        *,
        classes: Any = None,
        groups: Any = None,
        time_order: Any = None,
        callback: Callback | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        devices: str | Devices | None = None,
    ) -> Self:
        method = self.check_parameters()
        X, y = self._read(X, y, classes)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        table = merged(X, y, sample_weight, seed, keys_of(groups, time_order, len(y)))
        how = resolve(self.calibration, self.task, len(table.rows.y), table.keys)
        (rows, keys), held_out, aside = self._split(table, how)
        scaling = TableScaling(RankScaling.of(rows.x, rows.weight), self._scaling_of_y(rows))
        selection: Selection | None = None
        began = time.perf_counter()
        scaled = scaling.applied_to(rows)
        if method is None:
            noises = self._noises(True, rows.y)
            selection = self._select(scaled, keys, scaling.y, noises, seed, callback, checkpoint)
            self.candidates_, self.baseline_ = selection.candidates, selection.scores
            candidate, method = selection.candidate, selection.method.algorithm()
        else:
            needs_linear = method.capabilities.needs_linear_model
            is_chosen_from = method.capabilities.is_composite
            sizes = self._sizes(len(rows.y), is_chosen_from, needs_linear)
            candidate = Candidate(
                next((size for size in sizes if size != LINEAR), sizes[0]),
                self._scales(is_chosen_from, isinstance(method, MILE))[0],
                self._noises(is_chosen_from, rows.y)[0],
            )
        name = method.name if selection is None else selection.method.name
        self.chosen_ = candidate._asdict() | {"method": name}
        seconds = time.perf_counter() - began
        if selection is not None and self.budget is not None:
            left = max(0.0, seconds_of("budget", self.budget) - seconds)
            at_once = 1 if checkpoint is not None else num_cores()
            callback = Deadline(selection.method, left, at_once, callback)
        posterior = self._fit_once(
            *(KeyedRows(rows, keys), held_out, scaling, candidate, method, seed),
            callback=callback,
            checkpoint=checkpoint,
            devices=devices,
        )
        self.posterior_ = dataclasses.replace(
            posterior,
            notes=(
                *posterior.notes,
                *self.column_notes_,
                *self._notes(rows.y),
                *warnings_of(how, keys),
            ),
            wall_time=posterior.wall_time + seconds,
        )
        if selection is not None:
            self.posterior_ = selection.applied_to(self.posterior_, is_calibrated=aside is None)
            if selection.temperature is not None:
                self.chosen_["temperature"] = selection.temperature
        self.__dict__.pop("cross_calibration_", None)
        if how in CROSS:
            return self._cross_calibrated(how, table, candidate, method, seed)
        return self._calibrated(aside, how)

    def _fit_once(
        self,
        table: KeyedRows,
        held_out: Rows | None,
        scaling: TableScaling,
        candidate: Candidate,
        method: Algorithm,
        seed: int,
        **options: Any,
    ) -> Posterior:
        """A fit that predicts in the units of the rows."""
        rows, keys = table
        if held_out is None and isinstance(method, Composite):
            is_held = held_to_stop(keys, float(method.validation_fraction))
            if is_held is not None:
                held_out, rows = rows.take(is_held), rows.take(~is_held)
        posterior = fit(
            self._model(candidate, scaling.y),
            method,
            tuple(scaling.applied_to(rows)),
            seed=seed,
            validation=None if held_out is None else tuple(scaling.applied_to(held_out)),
            starts=self.starts,
            **options,
            **self._options(method),
        )
        return dataclasses.replace(posterior, scaling=scaling)

    def _cross_calibrated(
        self, how: str, table: KeyedRows, candidate: Candidate, method: Algorithm, seed: int
    ) -> Self:
        """Calibrate on out-of-fold rows, with the settings of the fit to all rows."""

        def fit_fold(part: KeyedRows) -> Posterior:
            part, held_out, _ = self._split(part, None)
            rows = part.rows
            scaling = TableScaling(RankScaling.of(rows.x, rows.weight), self._scaling_of_y(rows))
            return self._fit_once(part, held_out, scaling, candidate, method, seed)

        likelihood = getattr(self, "likelihood_", None)
        found = cross_calibrate(how, table, fit_fold, self._predictive_of)
        if likelihood is not None:
            self.likelihood_ = likelihood  # that of all rows
        self.cross_calibration_ = found._asdict()
        notes = (*self.posterior_.notes, found.note)
        self.posterior_ = dataclasses.replace(self.posterior_, notes=notes)
        return self

    def _model(self, candidate: Candidate, scaling: Scaling | None) -> Model:
        is_mlp = self.network is None
        network = MLP(candidate.hidden, self.activation) if is_mlp else self.network
        prior = prior_of(candidate.prior_scale, is_mlp)
        return Model(network, self._likelihood(candidate.noise, scaling), prior)

    # Values to try with method="auto"; the first is the default of the methods it chooses from.

    def _sizes(
        self, num_rows: int, is_chosen_from: bool, needs_linear: bool = False
    ) -> tuple[Any, ...]:
        """Hidden layers."""
        if not is_auto(self.hidden) or needs_linear:
            return (LINEAR if is_auto(self.hidden) else self.hidden,)
        has_classes = self.task == "classification"
        return network_sizes(num_rows, has_classes) if is_chosen_from else ((50,),)

    def _scales(self, is_chosen_from: bool, has_chains: bool) -> tuple[PriorScale, ...]:
        """Prior scales; chains infer them."""
        if not is_auto(self.prior_scale):
            return (self.prior_scale,)
        if not is_chosen_from:
            return (self.default_prior_scale,)
        return (HIERARCHICAL,) if has_chains else self.prior_scales

    def _select(
        self,
        rows: Rows,
        keys: Keys | None,
        scaling: Scaling | None,
        noises: tuple[Noise, ...],
        seed: int,
        callback: Callback | None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None,
    ) -> Selection:
        """Choose settings by out-of-fold rows; a resumed run has them in its folder."""
        number, columns = len(rows.y), rows.x.shape[1]

        def work(candidate: Candidate) -> float:
            with inside_double_precision():
                likelihood, _ = self._likelihood(candidate.noise, scaling).bind(rows.y)
            outputs = likelihood.num_outputs
            return float(number) * num_weights(candidate.hidden, columns, outputs)

        sizes = ((),) if self.network is not None else self._sizes(number, is_chosen_from=True)
        has_chains = allows_chains(work(Candidate(sizes[0], HIERARCHICAL, noises[0])))
        problem = Problem(
            rows,
            scaling is None,
            sizes,
            self._scales(True, has_chains),
            noises,
            lambda candidate: self._model(candidate, scaling),
            work,
            None if scaling is None else np.asarray(scaling.scale),
            seed,
            keys,
            None if self.budget is None else seconds_of("budget", self.budget),
        )
        return stored_or(checkpoint, lambda: select(problem, callback, self.progress))

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> Self:
        if not hasattr(self, "posterior_"):
            return self._fit(X, y, sample_weight, classes=classes)
        method = self.check_parameters() or self.posterior_.algorithm
        X, y = self._read(X, y, classes, first=False)
        seed = self.posterior_.seed + 1
        if self.calibration in CROSS:
            refuse(
                "calibration", self.calibration, "be another with partial_fit: it needs all rows"
            )
        how = resolve(self.calibration, self.task, MANY_ROWS, None)
        (rows, _), held_out, aside = self._split(merged(X, y, sample_weight, seed), how)
        options = self._options(method)
        if held_out is not None:
            options["validation"] = tuple(held_out)
        self.posterior_ = self.posterior_.update(
            tuple(rows), algorithm=method, seed=seed, **options
        )
        return self._calibrated(aside, how)

    def _calibrated(self, aside: Rows | None, how: str | None) -> Self:
        if aside is not None and how is not None:
            predictive = self._predictive(aside.x)
            self.posterior_ = calibrated(self.posterior_, predictive, aside, how)
        return self

    def check_parameters(self) -> Algorithm | None:
        """Refuse settings that make no sense; the algorithm of `method`, None for "auto"."""
        method = None if is_auto(self.method) else check_algorithm(self.method, "method", ("auto",))
        if not is_auto(self.prior_scale) and self.prior_scale != HIERARCHICAL:
            check_positive("prior_scale", self.prior_scale, alternatives=("auto", HIERARCHICAL))
        if self.budget is not None:
            if method is not None:
                refuse("budget", self.budget, 'be None unless method="auto"')
            seconds_of("budget", self.budget)
        check_whole("num_samples", self.num_samples, least=1)
        fraction = self.validation_fraction
        if fraction is not None and not (isinstance(fraction, numbers.Real) and 0 < fraction < 1):
            refuse("validation_fraction", fraction, "be None or between 0 and 1")
        check_calibration(self.calibration, self.calibration_fraction, self.task)
        check_options(self.categories, self.missing)
        return method

    def _split(
        self, table: KeyedRows, calibration: str | None
    ) -> tuple[KeyedRows, Rows | None, Rows | None]:
        """Rows to learn from, those held out to decide when to stop, and those to calibrate on."""
        has_classes = self.task == "classification"
        aside = held_out = None
        if calibration is not None and calibration not in CROSS:
            fraction, name = self.calibration_fraction, "calibration_fraction"
            table, (aside, _) = hold_out(table, fraction, has_classes, name, at_end=True)
        if self.validation_fraction is not None:
            fraction, name = self.validation_fraction, "validation_fraction"
            table, (held_out, _) = hold_out(table, fraction, has_classes, name)
        return table, held_out, aside

    def _options(self, method: Algorithm) -> dict[str, Any]:
        return {
            "num_steps": self.num_steps,
            "batch_size": self.batch_size,
            "progress": self.progress,
            "options": FitOptions(merge_rows=True),
        }

    # Predicting

    def predictive(self, X: Any, groups: Any = None) -> PredictiveBase:
        """The predictive distribution at rows of X, in the units of y.

        It has moments, quantiles, `log_prob`, `cdf` and `sample`; scores of `bl.metrics` take it.
        `groups` has the group of each row, where `calibrate` was by groups.
        """
        check_is_fitted(self, "posterior_")
        return self._predictive(validated(self, X, reset=False, dtype=np.float64), groups)

    def _predictive(self, X: np.ndarray, groups: Any = None) -> PredictiveBase:
        found = self._predictive_of(self.posterior_, X, groups=groups)
        if hasattr(self, "cross_calibration_"):
            cross = CrossCalibration(**self.cross_calibration_)
            return cross.apply(self.posterior_, found, lambda part: self._predictive_of(part, X))
        return found

    def _predictive_of(self, posterior: Posterior, X: np.ndarray, **groups: Any) -> PredictiveBase:
        if self.network is None:
            # So that a row's prediction does not depend on the rows beside it.
            posterior = posterior.in_double_precision()
        number = None if isinstance(posterior.family, ClosedForm) else int(self.num_samples)
        return posterior.predict(X, num_samples=number, seed=posterior.seed, **groups)

    def observed(self, X: Any, y: Any) -> np.ndarray:
        """y checked and encoded as `predictive(X)` takes it: numbers, or indices of classes."""
        check_is_fitted(self, "posterior_")
        return self._read(X, y, first=False)[1]
