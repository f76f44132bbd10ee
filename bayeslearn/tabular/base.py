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
from typing import Any, ClassVar, NamedTuple, Self

import jax
import numpy as np

from bayeslearn.algorithms.base import Algorithm
from bayeslearn.algorithms.map import MAP
from bayeslearn.algorithms.mile import MILE
from bayeslearn.data.rows import Rows, merge_rows
from bayeslearn.data.scaling import RankScaling, Scaling, TableScaling
from bayeslearn.duration import seconds_of
from bayeslearn.errors import ArgumentError, Shown, check_positive, check_whole, refuse
from bayeslearn.families.base import ClosedForm
from bayeslearn.inference.api import fit
from bayeslearn.inference.arguments import check_algorithm, is_auto
from bayeslearn.inference.options import Checkpoint, Devices, FitEvent, FitOptions
from bayeslearn.models.likelihoods.base import Likelihood
from bayeslearn.models.model import Model
from bayeslearn.models.networks import MLP
from bayeslearn.models.protocols import Network
from bayeslearn.precision import inside_double_precision
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.results.notebook import posterior_html
from bayeslearn.results.posterior import Posterior
from bayeslearn.storage import posteriors
from bayeslearn.tabular.calibrating import calibrated, check_calibration, set_aside
from bayeslearn.tabular.candidates import (
    HIERARCHICAL,
    PRIOR_SCALES,
    Candidate,
    Noise,
    PriorScale,
    allows_chains,
    network_sizes,
    num_weights,
    prior_of,
)
from bayeslearn.tabular.json_values import JSON
from bayeslearn.tabular.selection import Problem, Selection, select, stored_or
from bayeslearn.tabular.sklearn_parts import (
    BaseEstimator,
    check_is_fitted,
    check_random_state,
    check_sample_weight,
    validate_data,
)

# What `fit` leaves beside the posterior.
LEARNED = (
    *("n_features_in_", "feature_names_in_", "classes_"),
    *("chosen_", "candidates_", "baseline_", "likelihood_"),
)
Callback = Callable[[FitEvent], object]


class Uncertainty(NamedTuple):
    """Epistemic and aleatoric uncertainty.

    Regression: standard deviations in units of y, whose squares add up to that of `return_std`.
    Classification: mutual information and mean entropy, in nats.
    """

    epistemic: np.ndarray
    aleatoric: np.ndarray


def can_update(estimator: BayesianNN) -> bool:
    """Whether `partial_fit` is available; raises the AttributeError that says why not."""
    if estimator.method == MAP.name or isinstance(estimator.method, MAP):
        raise AttributeError(
            'partial_fit needs a posterior to update, and method="map" gives a point.'
        )
    return True


class BayesianNN(BaseEstimator):
    """Base of regressor and classifier (abstract)."""

    posterior_: Posterior
    chosen_: dict[str, JSON]
    candidates_: list[dict[str, JSON]]
    baseline_: dict[str, dict[str, float]]
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

    def _noises(self, is_chosen_from: bool) -> tuple[Noise, ...]:
        """Kinds of noise to try; see `_sizes`."""
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
        callback: Callback | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        devices: str | Devices | None = None,
    ) -> Self:
        method = self.check_parameters()
        X, y = self._read(X, y, classes)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        rows, held_out, aside = self._split(self._rows(X, y, sample_weight, seed))
        scaling = TableScaling(RankScaling.of(rows.x, rows.weight), self._scaling_of_y(rows))
        selection: Selection | None = None
        began = time.perf_counter()
        scaled = scaling.applied_to(rows)
        if method is None:
            selection = self._select(scaled, scaling.y, seed, callback, checkpoint)
            self.candidates_, self.baseline_ = selection.candidates, selection.scores
            candidate, method = selection.candidate, selection.method.algorithm()
        else:
            is_chosen_from = method.capabilities.is_composite
            candidate = Candidate(
                self._sizes(len(rows.y), is_chosen_from)[0],
                self._scales(is_chosen_from, isinstance(method, MILE))[0],
                self._noises(is_chosen_from)[0],
            )
        self.chosen_ = candidate._asdict() | {"method": method.name}
        seconds = time.perf_counter() - began
        posterior = fit(
            self._model(candidate, scaling.y),
            method,
            tuple(scaled),
            seed=seed,
            validation=None if held_out is None else tuple(scaling.applied_to(held_out)),
            starts=self.starts,
            callback=callback,
            checkpoint=checkpoint,
            devices=devices,
            **self._options(method),
        )
        self.posterior_ = dataclasses.replace(
            posterior,
            scaling=scaling,
            notes=(*posterior.notes, *self._notes(rows.y)),
            wall_time=posterior.wall_time + seconds,
        )
        if selection is not None:
            self.posterior_ = selection.applied_to(self.posterior_, is_calibrated=aside is None)
            if selection.temperature is not None:
                self.chosen_["temperature"] = selection.temperature
        return self._calibrated(aside)

    def _model(self, candidate: Candidate, scaling: Scaling | None) -> Model:
        is_mlp = self.network is None
        network = MLP(candidate.hidden, self.activation) if is_mlp else self.network
        prior = prior_of(candidate.prior_scale, is_mlp)
        return Model(network, self._likelihood(candidate.noise, scaling), prior)

    # Values to try with method="auto"; the first is the default of the methods it chooses from.

    def _sizes(self, num_rows: int, is_chosen_from: bool) -> tuple[Any, ...]:
        """Hidden layers."""
        if not is_auto(self.hidden):
            return (self.hidden,)
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
        scaling: Scaling | None,
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
        noises = self._noises(is_chosen_from=True)
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
        )
        budget = None if self.budget is None else seconds_of("budget", self.budget)
        return stored_or(checkpoint, lambda: select(problem, budget, callback))

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> Self:
        if not hasattr(self, "posterior_"):
            return self._fit(X, y, sample_weight, classes=classes)
        method = self.check_parameters() or self.posterior_.algorithm
        X, y = self._read(X, y, classes, first=False)
        seed = self.posterior_.seed + 1
        rows, held_out, aside = self._split(self._rows(X, y, sample_weight, seed))
        options = self._options(method)
        if held_out is not None:
            options["validation"] = tuple(held_out)
        self.posterior_ = self.posterior_.update(
            tuple(rows), algorithm=method, seed=seed, **options
        )
        return self._calibrated(aside)

    def _calibrated(self, aside: Rows | None) -> Self:
        if aside is not None and self.calibration is not None:
            predictive = self._predictive(aside.x)
            self.posterior_ = calibrated(self.posterior_, predictive, aside, self.calibration)
        return self

    def check_parameters(self) -> Algorithm | None:
        """Refuse settings that make no sense; the algorithm of `method`, None for "auto"."""
        method = None if is_auto(self.method) else check_algorithm(self.method, "method")
        if not is_auto(self.prior_scale) and self.prior_scale != HIERARCHICAL:
            check_positive("prior_scale", self.prior_scale, alternatives=("auto", HIERARCHICAL))
        if self.budget is not None:
            if method is not None:
                refuse("budget", self.budget, 'be None with a method other than "auto"')
            seconds_of("budget", self.budget)
        check_whole("num_samples", self.num_samples, least=1)
        fraction = self.validation_fraction
        if fraction is not None and not (isinstance(fraction, numbers.Real) and 0 < fraction < 1):
            refuse("validation_fraction", fraction, "be None or between 0 and 1")
        check_calibration(self.calibration, self.calibration_fraction, self.task)
        return method

    def _rows(self, X: np.ndarray, y: np.ndarray, sample_weight: Any, seed: int) -> Rows:
        """The rows that count, equal ones merged, in an order drawn from the seed."""
        weight = check_sample_weight(sample_weight, X, dtype=np.float64)
        if not np.all(weight >= 0):
            refuse("sample_weight", Shown("negative numbers"), "hold numbers from 0 on")
        if not np.any(weight > 0):
            raise ArgumentError("`sample_weight` must hold a weight that is not zero.")
        return merge_rows((X, y, weight), seed)

    def _split(self, rows: Rows) -> tuple[Rows, Rows | None, Rows | None]:
        """Rows to learn from, those held out to decide when to stop, and those to calibrate on."""
        rows, aside = set_aside(self.calibration, self.calibration_fraction, rows)
        if self.validation_fraction is None:
            return rows, None, aside
        held_out = max(1, round(self.validation_fraction * len(rows.y)))
        if held_out >= len(rows.y):
            must = f"leave rows to learn from: there are {len(rows.y)} different ones"
            refuse("validation_fraction", self.validation_fraction, must)
        return rows.take(slice(held_out, None)), rows.take(slice(held_out)), aside

    def _options(self, method: Algorithm) -> dict[str, Any]:
        return {
            "num_steps": self.num_steps,
            "batch_size": self.batch_size,
            "progress": self.progress,
            "options": FitOptions(merge_rows=True),
        }

    # Predicting

    def predictive(self, X: Any) -> PredictiveBase:
        """The predictive distribution at rows of X, in the units of y.

        It has moments, quantiles, `log_prob`, `cdf` and `sample`; scores of `bl.metrics` take it.
        """
        check_is_fitted(self, "posterior_")
        return self._predictive(validate_data(self, X, reset=False, dtype=np.float64))

    def _predictive(self, X: np.ndarray) -> PredictiveBase:
        posterior = self.posterior_
        if self.network is None:
            # So that a row's prediction does not depend on the rows beside it.
            posterior = posterior.in_double_precision()
        number = None if isinstance(posterior.family, ClosedForm) else int(self.num_samples)
        return posterior.predict(X, num_samples=number, seed=posterior.seed)

    def observed(self, X: Any, y: Any) -> np.ndarray:
        """y checked and encoded as `predictive(X)` takes it: numbers, or indices of classes."""
        check_is_fitted(self, "posterior_")
        return self._read(X, y, first=False)[1]

    @property
    def trace_(self) -> dict[str, np.ndarray]:
        """Numbers of the run by name, `eval_elbo` among them; see `Posterior.trace`."""
        return self.posterior_.trace

    @property
    def scaling_(self) -> Scaling | RankScaling:
        """Mean and scale of the columns of x."""
        scaling = self.posterior_.scaling
        assert scaling is not None
        return scaling.x

    def _sample(self, X: Any, n_samples: int, random_state: Any) -> np.ndarray:
        """(n_samples, rows, ...)"""
        predictive = self.predictive(X)
        check_whole("n_samples", n_samples, least=1)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        return predictive.sample(seed, int(n_samples))

    # Storing and showing

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the fitted estimator to a folder that `bl.tabular.load` reads.

        Arrays and a description, as `Posterior.save` writes them: no pickle, no training rows. A
        `random_state` that is not a number is not stored.
        """
        check_is_fitted(self, "posterior_")
        parameters = self.get_params(deep=False) | {"network": None}
        if not isinstance(self.random_state, numbers.Integral | None):
            parameters["random_state"] = None
        learned = {name: getattr(self, name) for name in LEARNED if hasattr(self, name)}
        for name, value in learned.items():
            if isinstance(value, np.ndarray) and value.dtype.kind in "OUT":  # names
                learned[name] = [str(value.dtype), value.tolist()]
        owner = {"class": type(self).__name__, "parameters": parameters, "learned": learned}
        posteriors.save(self.posterior_.stored_fields(), path, overwrite=overwrite, owner=owner)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "posterior_" in state:
            state["posterior_"] = _without_rows(state["posterior_"])
        return state

    def _repr_html_inner(self) -> str:
        shown = super()._repr_html_inner()
        return shown + posterior_html(self.posterior_) if hasattr(self, "posterior_") else shown

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle = super()._repr_mimebundle_(**kwargs)
        if "text/html" in bundle:
            bundle["text/html"] = self._repr_html_inner()
        return bundle


def _without_rows(posterior: Posterior) -> Posterior:
    """Arrays of NumPy and settings, without the training rows and the last state of the run."""
    target = posterior.target.with_data(jax.tree.map(lambda a: a[:0], posterior.target.data))
    parts = {
        name: jax.tree.map(lambda a: np.asarray(a) if isinstance(a, jax.Array) else a, part)
        for name, part in (("target", target), ("family", posterior.family))
    }
    return dataclasses.replace(posterior, state=None, **parts)
