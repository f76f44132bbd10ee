"""Posterior: what `fit` returns. It predicts, samples, summarizes itself, and says how it went."""

from __future__ import annotations

import dataclasses
import numbers
import os
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import ArrayLike

from bayeslearn import tree
from bayeslearn.algorithms.base import Algorithm
from bayeslearn.data.rows import Data, check_data, check_inputs
from bayeslearn.data.scaling import TableScaling
from bayeslearn.distributed.mesh import Layout
from bayeslearn.errors import (
    ArgumentError,
    Shown,
    StorageError,
    check_whole,
    moved_keywords,
    refuse,
    warn,
)
from bayeslearn.families import Draws, Mixture, Point
from bayeslearn.families.base import ClosedForm, Family
from bayeslearn.inference.options import MOVED, Devices, Phase, to_layout
from bayeslearn.inference.run import RunResult
from bayeslearn.models.protocols import Network
from bayeslearn.models.target import Target, check_like_training
from bayeslearn.precision import double_precision
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.results.arviz import to_arviz
from bayeslearn.results.calibration import Calibrator, fit_calibrator
from bayeslearn.results.diagnostics import (
    Diagnostics,
    all_rows,
    diagnose,
    problems,
    stored_outputs,
)
from bayeslearn.results.notebook import posterior_html
from bayeslearn.results.predictive import Predictive
from bayeslearn.results.scaled import ScaledPredictive
from bayeslearn.results.sequential import update
from bayeslearn.results.stored import from_stored, to_stored
from bayeslearn.results.summaries import summarize
from bayeslearn.sizes import check_seed
from bayeslearn.storage import posteriors
from bayeslearn.tree import Array, PyTree

PREDICTIVE_DRAWS = 256
MAX_KEPT_DRAWS = 1000


class MixingWarning(UserWarning):
    """A sampler's draws cannot be trusted yet; the message says why."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Posterior:
    """The learned distribution over the weights, and how the run went.

    Attributes:
        family: the q (a Gaussian, a point, or draws).
        trace: per-step numbers by name, and `eval_*` for those measured at evaluations.
        elbo: lower bound of the returned iterate, measured with fresh draws; None without one.
        stopped: why the run ended, in a sentence.
        notes: what a user should know about the run.
        wall_time, compile_time: seconds; the first includes the second.
        row_outputs: after loading, a sampler's outputs at some training rows, for `diagnostics`.
        phases: what was run, in order, with its steps, gradients, seconds and lower bound.
        scaling: how columns were scaled before the fit, where an estimator did; `predict`, `update`
            and all that is computed from predictions take and give the units of the data.
        calibrator: what `calibrate` learned, which `predict` applies.
    """

    target: Target
    algorithm: Algorithm
    family: Family
    state: PyTree
    trace: dict[str, np.ndarray]
    elbo: float | None
    stopped: str
    notes: tuple[str, ...]
    seed: int
    wall_time: float
    compile_time: float
    row_outputs: np.ndarray | None = None
    phases: tuple[Phase, ...] = ()
    scaling: TableScaling | None = None
    calibrator: Calibrator | None = None

    @classmethod
    def from_run(cls, result: RunResult) -> Posterior:
        """The posterior of a run; warns, and notes, where a sampler's draws cannot be trusted."""
        posterior = cls(**result._asdict())
        if posterior.draws is None or "log_density" not in result.trace:
            return posterior
        serious, others = problems(posterior)
        if result.algorithm.capabilities.is_sampler:  # the chains of a composite are a means
            for text in serious:
                warn(text, MixingWarning)
        return dataclasses.replace(posterior, notes=(*posterior.notes, *serious, *others))

    @property
    def draws(self) -> PyTree | None:
        """A sampler's kept draws with leading axes (chains, draws); None for other methods."""
        if not isinstance(self.family, Draws):
            return None
        return self.target.constrained(self.family.draws)

    @double_precision
    def sample(self, key: Array | int, num: int = 1) -> PyTree:
        """`num` sets of weights along a leading axis.

        >>> draws = posterior.sample(0, 100)
        >>> draws["network"]["layers"][0].weight.shape
        (100, 1, 3)
        """
        key = jax.random.key(key) if isinstance(key, int | np.integer) else key
        return self.target.constrained(self.family.sample(key, num))

    @double_precision
    def predict(
        self,
        x: PyTree,
        *,
        num_samples: int | None = None,
        seed: int = 0,
        devices: str | Mesh | Devices | None = None,
        groups: ArrayLike | None = None,
    ) -> PredictiveBase:
        """The predictive distribution at the rows of x.

        `num_samples` draws of the weights are used; default: 256, a sampler's kept draws up to
        1000, one for a point. With `devices` (see `fit`) rows are divided among them; of several
        processes each must then ask the same of the same rows. `groups` has the group of each row,
        where calibration was by groups.

        >>> predictive = posterior.predict([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
        >>> predictive.mean.round(1), predictive.std.round(1)
        (array([0., 1.]), array([0.3, 0.3]))
        >>> lower, upper = predictive.interval(0.9)
        >>> (upper - lower).round(0)
        array([1., 1.])
        """
        layout = to_layout(devices)
        if self.target.is_density:
            raise ArgumentError("A bare log-density has no predictions; use `sample`.")
        if num_samples is not None:
            check_whole("num_samples", num_samples, least=1)
        check_seed(seed)
        x = check_inputs(x)
        if self.scaling is not None:
            x = self.scaling.x.apply(np.asarray(x, np.float64))
        check_like_training(x, self.target)
        predictive = self._predict(x, num_samples, seed, layout)
        if self.scaling is not None and self.scaling.y is not None:
            predictive = ScaledPredictive(predictive, self.scaling.y)
        if self.calibrator is not None:
            return self.calibrator.apply(predictive, groups)
        if groups is not None:
            refuse("groups", Shown("groups"), "be left out: there is no calibration by groups")
        return predictive

    def _predict(
        self, x: PyTree, num_samples: int | None, seed: int, layout: Layout | None
    ) -> PredictiveBase:
        """At rows as the network takes them."""
        if num_samples is None and isinstance(self.family, ClosedForm):
            return self.family.predictive(self.target, self.target.batch((x, np.zeros(1))).x)
        if isinstance(self.family, Point):
            num_samples = 1
        elif isinstance(self.family, Mixture) and self.family.is_of_points:
            num_samples = self.family.num_members
        elif num_samples is None:
            num_samples = PREDICTIVE_DRAWS
            if isinstance(self.family, Draws):
                num_samples = min(MAX_KEPT_DRAWS, self.family.num_draws)
        rows = self.target.batch((x, np.zeros(1))).x
        if isinstance(self.family, Draws) and num_samples <= self.family.num_draws:
            draws = self.family.thinned(num_samples)
            target = self.algorithm.predictive_target(self.target, self.family)
        else:
            key = jax.random.key(seed)
            target, draws, rows = self.algorithm.predictive_draws(
                self.target, self.family, key, num_samples, rows
            )
        return Predictive(target, draws, rows, layout)

    def calibrate(
        self,
        data: Data,
        method: str = "conformal",
        *,
        groups: ArrayLike | str | None = None,
        joint: bool = False,
        num_samples: int | None = None,
        seed: int = 0,
    ) -> Posterior:
        """The same posterior, whose predictions are calibrated on rows it was not fitted to.

        "conformal" guarantees marginal coverage: an interval (or `prediction_set`) of level 0.9
        holds a new observation with probability at least 0.9, and at most 0.9 + 1 / (n + 1), if new
        rows are exchangeable with the n rows given here; a warning says that their scores drift
        with their order. Too few rows for a level give infinite
        intervals and a warning. Mean, std and `log_prob` stay the model's. The other methods change
        the whole predictive and guarantee nothing in finite samples: "scale" (regression)
        multiplies the standard deviation, "temperature" (classification) divides the logits, and
        "isotonic" maps the distribution function, or a class's probability, to what was observed.
        Rows with a censored y are refused.

        Args:
            data: (x, y) or (x, y, weight), rows that were not used to fit.
            method: "conformal", "scale", "temperature" or "isotonic".
            groups: the group of each row, a name or a whole number: each is calibrated by itself,
                and conformal coverage holds in each (Mondrian); `predict` then needs `groups` too.
                "class": each class, for conformal sets.
            joint: of several columns of y, conformal intervals that hold all of them at once.
            num_samples, seed: as of `predict`, which must use the same for conformal coverage.

        >>> calibrated = posterior.calibrate((x_held, y_held), method="conformal")
        >>> inside = bl.metrics.coverage(calibrated.predict(x), y, level=0.9)
        """
        x, y, weight = check_data(data)
        before = self.uncalibrated()
        predictive = before.predict(x, num_samples=num_samples, seed=seed)
        calibrator = fit_calibrator(
            predictive, y, method, weight=weight, groups=groups, joint=joint, seed=seed
        )
        return before.with_calibrator(calibrator)

    def with_calibrator(self, calibrator: Calibrator) -> Posterior:
        """The same posterior, whose predictions are calibrated by one that was fitted already."""
        notes = (*self.uncalibrated().notes, calibrator.note)
        return dataclasses.replace(self, calibrator=calibrator, notes=notes)

    def uncalibrated(self) -> Posterior:
        """The same posterior without what `calibrate` did."""
        if self.calibrator is None:
            return self
        notes = tuple(note for note in self.notes if note != self.calibrator.note)
        return dataclasses.replace(self, calibrator=None, notes=notes)

    def in_double_precision(self) -> Posterior:
        """The same posterior, whose network predicts in double precision."""
        doubles = ("float64",) * len(self.target.dtypes)
        return dataclasses.replace(self, target=dataclasses.replace(self.target, dtypes=doubles))

    @double_precision
    def summary(self, level: float = 0.9) -> list[dict[str, Any]]:
        """One row per leaf of the parameters: mean, sd and credible interval of its weights.

        Numbers are arrays of the leaf's shape. The interval is Gaussian for a Gaussian family,
        and made of quantiles for draws. Weights of a network can be permuted without changing
        its predictions, so single weights of a sampler may have several modes.

        >>> [(row["name"], row["mean"].round(1)) for row in posterior.summary()]
        [('network.layers.0.weight', array([[ 1. , -2.1,  0.5]])),
         ('network.layers.0.bias', array([0.]))]
        """
        if not isinstance(level, numbers.Real) or not 0 < level < 1:
            refuse("level", level, "be between 0 and 1, such as 0.9")
        return summarize(self.target, self.family, float(level))

    @moved_keywords(**MOVED)
    def update(
        self,
        new_data: Data,
        *,
        algorithm: Algorithm | str | None = None,
        seed: int | None = None,
        history: Data | None = None,
        **fit_options: Any,
    ) -> Posterior:
        """The posterior after more data, with this one as the prior; `notes` says how.

        It is not calibrated.

        Args:
            new_data: (x, y) or (x, y, weight) like the first; the old rows are not needed.
            algorithm: another than the one used so far.
            seed: default: one more than this posterior's.
            history: the rows this posterior was fitted to, for a sampler: where its draws cannot
                be reweighted it is then run again on all rows.
            fit_options: further arguments of `fit`, but for `checkpoint`.

        >>> later = posterior.update((x_held, y_held))
        >>> bool(np.all(later.predict(x).epistemic < posterior.predict(x).epistemic))
        True
        """
        before = self.uncalibrated()
        if self.scaling is not None:
            new_data = _scaled(new_data, "new_data", self.scaling)
            history = None if history is None else _scaled(history, "history", self.scaling)
            if fit_options.get("validation") is not None:
                held_out = _scaled(fit_options["validation"], "validation", self.scaling)
                fit_options["validation"] = held_out
        result = update(
            before, new_data, algorithm=algorithm, seed=seed, history=history, **fit_options
        )
        if isinstance(result, RunResult):
            return dataclasses.replace(Posterior.from_run(result), scaling=self.scaling)
        return dataclasses.replace(before, **result)

    def training_data(self) -> tuple[PyTree, np.ndarray, np.ndarray | None]:
        """x, y and weights that it was fitted to, in the units that `predict` takes.

        Refused where only a part of them is at hand: after loading, and for data from an iterable.
        """
        data = all_rows(self)
        x, y = jax.tree.map(np.asarray, data.x), np.asarray(data.y)
        if self.target.likelihood.is_vector and y.ndim == 2:
            y = y[:, 0]
        if self.scaling is not None:
            x = self.scaling.x.undo(np.asarray(x, np.float64))
            y = y if self.scaling.y is None else self.scaling.y.undo(np.asarray(y, np.float64))
        return x, y, None if data.weight is None else np.asarray(data.weight)

    def diagnostics(self) -> Diagnostics:
        """R-hat and effective sample sizes of a sampler; see `bayeslearn.diagnostics`.

        >>> sampler = bl.HMC(num_warmup=100, num_samples=50)
        >>> sampled = bl.fit(model, sampler, (x, y), seed=0, num_chains=2)
        >>> bool(np.all(sampled.diagnostics().rhat_predictions < 1.2))
        True
        """
        return diagnose(self)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write it to a folder, without the training data; `bl.load` reads it.

        >>> posterior.save("run")
        >>> bool(np.all(bl.load("run").predict(x).mean == posterior.predict(x).mean))
        True
        """
        posteriors.save(self.stored_fields(), path, overwrite=overwrite)

    def stored_fields(self) -> dict[str, Any]:
        """What a file holds of it."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | to_stored(fields) | {"row_outputs": stored_outputs(self)}

    @classmethod
    def from_stored_fields(cls, fields: dict[str, Any]) -> Posterior:
        """The inverse of `stored_fields`; what does not make a posterior is a `StorageError`."""
        try:
            return cls(**fields | from_stored(fields))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise StorageError(
                f"The file cannot be loaded: its description does not make a posterior ({error})."
            ) from error

    def to_arviz(self, *, num_samples: int = 1000, seed: int = 0) -> Any:
        """Draws, pointwise log-likelihood, data and statistics of the run, for ArviZ.

        An InferenceData with ArviZ 0.x, a DataTree with 1.x.

        A sampler gives all its draws, other methods `num_samples` of q as one chain.
        """
        return to_arviz(self, num_samples=num_samples, seed=seed)

    def __repr__(self) -> str:
        lines = [
            f"Posterior by {self.algorithm.name}: {type(self.family).__name__} over"
            f" {tree.size(self.family.mean)} weights",
            f"  {self.stopped}",
            f"  {self.wall_time:.1f} s, of which {self.compile_time:.1f} s compiling",
        ]
        if self.elbo is not None:
            lines.insert(1, f"  elbo {self.elbo:.4f}")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        return posterior_html(self)


def _scaled(data: Data, name: str, scaling: TableScaling) -> Data:
    """Data in the units that the network takes."""
    x, y, weight = check_data(data, name)
    return (*scaling.apply(np.asarray(x, np.float64), y), weight)


def load(path: str | os.PathLike[str], network: Network | None = None) -> Posterior:
    """The posterior that `Posterior.save` wrote to a folder.

    It predicts, samples and summarizes itself as before, to the bit; what needs the training rows
    is refused. `network` is required where the network is not one of `bl.networks`: the one that
    was fitted, or another with weights of the same names and shapes.
    """
    return Posterior.from_stored_fields(posteriors.load(path, network)[0])
