"""Posterior: what `fit` returns. It predicts, samples, sums itself up, and says how it went."""

from __future__ import annotations

import dataclasses
import numbers
import os
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bayeslearn import distributed, tree
from bayeslearn.algorithms.base import Algorithm
from bayeslearn.errors import ArgumentError, check_whole, refuse
from bayeslearn.families import Draws, Point
from bayeslearn.model import Target, check_inputs, check_like_training
from bayeslearn.precision import double_precision
from bayeslearn.predictive import Predictive
from bayeslearn.tree import Array, PyTree

PREDICTIVE_DRAWS = 256
MAX_KEPT_DRAWS = 1000


class MixingWarning(UserWarning):
    """A sampler's chains disagree, or too few of their draws are worth an independent one."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Posterior:
    """The learned distribution over the weights, and the story of the run.

    Attributes:
        family: the q (a Gaussian, a point, or draws).
        trace: per-step numbers by name, and `eval_*` for those measured at evaluations.
        elbo: lower bound of the returned iterate, measured with fresh draws; None without one.
        stopped: why the run ended, in a sentence.
        notes: what a user should know about the run.
        wall_time, compile_time: seconds; the first includes the second.
        row_outputs: after loading, a sampler's outputs at some training rows, for `diagnostics`.
    """

    target: Target
    algorithm: Algorithm
    family: Any
    state: Any
    trace: dict[str, np.ndarray]
    elbo: float | None
    stopped: str
    notes: tuple[str, ...]
    seed: int
    wall_time: float
    compile_time: float
    row_outputs: np.ndarray | None = None

    @property
    def draws(self) -> PyTree | None:
        """A sampler's kept draws with leading axes (chains, draws); None for other methods."""
        return self.family.draws if isinstance(self.family, Draws) else None

    @double_precision
    def sample(self, key: Array | int, num: int = 1) -> PyTree:
        """`num` sets of weights along a leading axis."""
        key = jax.random.key(key) if isinstance(key, int | np.integer) else key
        return self.family.sample(key, num)

    @double_precision
    def predict(
        self,
        x: Any,
        *,
        num_samples: int | None = None,
        seed: int = 0,
        mesh: Mesh | None = None,
        devices: str | None = None,
    ) -> Predictive:
        """The predictive distribution at the rows of x.

        `num_samples` draws of the weights are used: 256 unless said, a sampler's kept draws up
        to 1000, one for a point. With a `mesh` (or `devices="all"`, see `fit`) rows are divided
        among its devices; of several processes each must then ask the same of the same rows.
        """
        layout = distributed.layout(mesh, devices)
        if self.target.is_density:
            raise ArgumentError("A bare log-density has no predictions; use `sample`.")
        if num_samples is not None:
            check_whole("num_samples", num_samples, least=1)
        check_whole("seed", seed, least=0)
        x = check_inputs(x)
        check_like_training(x, self.target)
        if num_samples is None and hasattr(self.family, "predictive"):  # in closed form
            return self.family.predictive(self.target, self.target.batch((x, np.zeros(1))).x)
        if isinstance(self.family, Point):
            num_samples = 1
        elif num_samples is None:
            is_draws = isinstance(self.family, Draws)
            num_samples = (
                min(MAX_KEPT_DRAWS, self.family.num_draws) if is_draws else PREDICTIVE_DRAWS
            )
        draws = self.family.sample(jax.random.key(seed), num_samples)
        target = self.algorithm.predictive_target(self.target, self.family)
        return Predictive(target, draws, self.target.batch((x, np.zeros(1))).x, layout)

    @double_precision
    def summary(self, level: float = 0.9) -> list[dict[str, Any]]:
        """One row per leaf of the parameters: mean, sd and credible interval of its weights.

        Numbers are arrays of the leaf's shape. The interval is Gaussian for a Gaussian family,
        and made of quantiles for draws. Weights of a network can be permuted without changing
        its predictions, so single weights of a sampler may have several modes.
        """
        if not isinstance(level, numbers.Real) or not 0 < level < 1:
            refuse("level", level, "be between 0 and 1, such as 0.9")
        mean, std = self.family.mean, self.family.std
        tail = (1.0 - level) / 2.0
        if isinstance(self.family, Draws):
            flat = self.family.flat()
            lower, upper = (
                jax.tree.map(lambda w, q=q: jnp.quantile(w, q, axis=0), flat)
                for q in (tail, 1.0 - tail)
            )
        else:
            z = jax.scipy.stats.norm.ppf(1.0 - tail)
            lower = jax.tree.map(lambda m, s: m - z * s, mean, std)
            upper = jax.tree.map(lambda m, s: m + z * s, mean, std)
        columns = [jax.tree.leaves(part) for part in (mean, std, lower, upper)]
        return [
            {
                "name": name,
                "shape": tuple(m.shape),
                "mean": np.asarray(m),
                "std": np.asarray(s),
                "lower": np.asarray(low),
                "upper": np.asarray(up),
            }
            for name, m, s, low, up in zip(tree.leaf_names(mean), *columns, strict=True)
        ]

    def update(
        self,
        new_data: tuple[Any, Any],
        *,
        algorithm: Algorithm | str | None = None,
        seed: int | None = None,
        history: tuple[Any, Any] | None = None,
        weight: Any = None,
        **fit_options: Any,
    ) -> Posterior:
        """The posterior after more data, with this one as the prior; `notes` says how.

        Args:
            new_data: a pair (x, y) like the first; the old rows are not needed.
            algorithm: another than the one used so far.
            seed: one more than this posterior's unless said.
            history: the rows this posterior was fitted to, for a sampler: where its draws cannot
                be reweighed it is then run again on all rows.
            weight: how often each new row counts; once unless said.
            fit_options: further arguments of `fit`.
        """
        from bayeslearn.sequential import update

        options = {"algorithm": algorithm, "seed": seed, "history": history, "weight": weight}
        return update(self, new_data, **options, **fit_options)

    def diagnostics(self) -> Any:
        """R-hat and effective sample sizes of a sampler; see `bayeslearn.diagnostics`."""
        from bayeslearn.diagnostics import diagnose

        return diagnose(self)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write it to a folder, without the training data; `bl.load` reads it."""
        from bayeslearn.storage import save

        save(self, path, overwrite=overwrite)

    def to_arviz(self, *, num_samples: int = 1000, seed: int = 0) -> Any:
        """ArviZ's InferenceData: draws, pointwise log-likelihood, data and the story of the run.

        A sampler gives all its draws, other methods `num_samples` of q as one chain.
        """
        from bayeslearn.diagnostics import to_arviz

        return to_arviz(self, num_samples=num_samples, seed=seed)

    def warn_if_not_mixed(self) -> None:
        """Warn in plain language if the chains have not mixed (needs ArviZ)."""
        from bayeslearn.diagnostics import not_mixed

        try:
            warning = not_mixed(self)
        except ImportError:
            return
        if warning:
            warnings.warn(warning, MixingWarning, stacklevel=4)

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
