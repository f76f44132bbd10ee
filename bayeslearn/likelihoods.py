"""Likelihoods: how one observation follows from the network's output.

Each likelihood is written by a person (`Gaussian()`), bound to the observations it will explain
(`bind(y)` checks them and fixes what depends on them), and then speaks of ONE example and ONE
set of weights. `params` are the likelihood's own parameters (the log noise scale), inferred like
weights. `kind` tells how a predictive is summed up: by moments ("regression") or by class
probabilities ("classification").
"""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn.errors import Shown, refuse
from bayeslearn.tree import Array

Params = dict[str, Array]


class Likelihood(eqx.Module):
    """What every likelihood answers."""

    kind: ClassVar[str]

    def bind(self, y: np.ndarray) -> tuple[Likelihood, np.ndarray]:
        """Check `y`; return the likelihood that fits it and `y` as (rows, columns) or (rows,)."""
        raise NotImplementedError

    def check(self, y: np.ndarray) -> np.ndarray:
        """Bring later observations (validation, `log_prob(y)`) into the bound form."""
        raise NotImplementedError

    @property
    def num_outputs(self) -> int:
        raise NotImplementedError

    def init(self) -> Params:
        """Starting values of the likelihood's own parameters."""
        return {}

    def prior(self) -> tuple[Params, Params]:
        """Mean and standard deviation of the Gaussian prior over `init()`'s leaves."""
        return {}, {}

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        raise NotImplementedError

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        raise NotImplementedError


class Gaussian(Likelihood):
    """Gaussian noise around the network's output.

    `noise_scale` is its standard deviation when it is known (one number, or one per column of
    y). Left out, its logarithm is learned along with the weights, one per column, with the prior
    Normal(log sd(y), `noise_prior_scale`). Aleatoric uncertainty is the noise variance.
    """

    kind: ClassVar[str] = "regression"

    noise_scale: Any = None
    noise_prior_scale: float = 1.0
    columns: int | None = eqx.field(default=None, static=True, kw_only=True)
    center: Any = eqx.field(default=None, kw_only=True)
    is_vector: bool = eqx.field(default=False, static=True, kw_only=True)

    def __check_init__(self) -> None:
        if self.noise_scale is not None:
            _check_positive("noise_scale", self.noise_scale, "Leave it out to have it learned.")
        _check_positive("noise_prior_scale", self.noise_prior_scale)

    def bind(self, y: np.ndarray) -> tuple[Gaussian, np.ndarray]:
        y = _numeric(y)
        table = y[:, None] if y.ndim == 1 else y
        if table.ndim != 2 or table.shape[1] == 0:
            refuse("y", Shown(f"shape {y.shape}"), "be (rows,) or (rows, columns)")
        columns = table.shape[1]
        if self.noise_scale is not None and np.shape(self.noise_scale) not in ((), (columns,)):
            refuse("noise_scale", self.noise_scale, f"be one number or {columns} (columns of y)")
        spread = np.std(table, axis=0)
        center = np.log(np.where(spread > 0, spread, 1.0))
        learned = self.noise_scale is None
        bound = Gaussian(
            self.noise_scale,
            self.noise_prior_scale,
            columns=columns,
            center=jnp.asarray(center, jnp.float64) if learned else None,
            is_vector=y.ndim == 1,
        )
        return bound, table

    def check(self, y: np.ndarray) -> np.ndarray:
        y = _numeric(y)
        table = y[:, None] if y.ndim == 1 else y
        if table.ndim != 2 or table.shape[1] != self.columns:
            refuse("y", Shown(f"shape {y.shape}"), f"have {self.columns} column(s) as in fitting")
        return table

    @property
    def num_outputs(self) -> int:
        return int(self.columns or 1)

    def init(self) -> Params:
        return {} if self.center is None else {"log_noise_scale": self.center}

    def prior(self) -> tuple[Params, Params]:
        if self.center is None:
            return {}, {}
        scale = jnp.full_like(self.center, self.noise_prior_scale)
        return {"log_noise_scale": self.center}, {"log_noise_scale": scale}

    def std(self, params: Params, dtype: Any) -> Array:
        if "log_noise_scale" in params:
            return jnp.exp(params["log_noise_scale"])
        return jnp.broadcast_to(jnp.asarray(self.noise_scale, dtype), (self.num_outputs,))

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        std = self.std(params, outputs.dtype)
        z = (y - outputs) / std
        return jnp.sum(-0.5 * z**2 - jnp.log(std) - 0.5 * jnp.log(2 * jnp.pi))

    def mean(self, outputs: Array, params: Params) -> Array:
        return outputs

    def variance(self, outputs: Array, params: Params) -> Array:
        return self.std(params, outputs.dtype) ** 2

    def cdf(self, outputs: Array, y: Array, params: Params) -> Array:
        return jax.scipy.stats.norm.cdf(y, outputs, self.std(params, outputs.dtype))

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        noise = jax.random.normal(key, outputs.shape, outputs.dtype)
        return outputs + self.std(params, outputs.dtype) * noise


class Bernoulli(Likelihood):
    """A yes or no (0 or 1); the network gives the log-odds of 1.

    Aleatoric uncertainty is the mean entropy of the draws' predictions.
    """

    kind: ClassVar[str] = "classification"

    def bind(self, y: np.ndarray) -> tuple[Bernoulli, np.ndarray]:
        return self, self.check(y)

    def check(self, y: np.ndarray) -> np.ndarray:
        y = _numeric(y)
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.ndim != 1:
            refuse("y", Shown(f"shape {y.shape}"), "be (rows,) of 0 and 1")
        _check_labels(y, 2, "0 and 1", "For more classes use bl.likelihoods.Categorical().")
        return y.astype(np.int32)

    @property
    def num_outputs(self) -> int:
        return 1

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        return jnp.sum(jax.nn.log_sigmoid(jnp.where(y == 1, outputs, -outputs)))

    def probs(self, outputs: Array, params: Params) -> Array:
        return jax.nn.softmax(jnp.concatenate([jnp.zeros_like(outputs), outputs]))

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        return jax.random.bernoulli(key, jax.nn.sigmoid(outputs[0])).astype(jnp.int32)


class Categorical(Likelihood):
    """One of `num_classes` classes, labelled 0, 1, ...; the network gives one logit for each.

    Left out, `num_classes` is the largest label of the training data plus one. Aleatoric
    uncertainty is the mean entropy of the draws' predictions.
    """

    kind: ClassVar[str] = "classification"

    num_classes: int | None = eqx.field(default=None, static=True)

    def __check_init__(self) -> None:
        if self.num_classes is not None and (
            not isinstance(self.num_classes, int | np.integer) or self.num_classes < 2
        ):
            refuse("num_classes", self.num_classes, "be an integer of at least 2")

    def bind(self, y: np.ndarray) -> tuple[Categorical, np.ndarray]:
        if self.num_classes is not None:
            return self, self.check(y)
        labels = Categorical(num_classes=2**31 - 1).check(y)
        return Categorical(num_classes=max(2, int(labels.max()) + 1)), labels

    def check(self, y: np.ndarray) -> np.ndarray:
        y = _numeric(y)
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.ndim != 1:
            refuse(
                "y",
                Shown(f"shape {y.shape}"),
                "be (rows,) of class labels",
                "Turn one-hot rows into labels with y.argmax(axis=1).",
            )
        classes = self.num_outputs
        _check_labels(
            y, classes, f"0 to {classes - 1}", "Encode names with sklearn's LabelEncoder."
        )
        return y.astype(np.int32)

    @property
    def num_outputs(self) -> int:
        return int(self.num_classes or 2)

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        return jax.nn.log_softmax(outputs)[y]

    def probs(self, outputs: Array, params: Params) -> Array:
        return jax.nn.softmax(outputs)

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        return jax.random.categorical(key, outputs).astype(jnp.int32)


def _numeric(y: Any) -> np.ndarray:
    y = np.asarray(y)
    if y.dtype.kind not in "iufb":
        refuse("y", Shown(f"dtype {y.dtype}"), "hold numbers", "Encode labels as 0, 1, ...")
    if not np.all(np.isfinite(y)):
        rows = np.unique(np.argwhere(~np.isfinite(y))[:, 0])
        refuse(
            "y",
            Shown(f"NaN or infinity in {len(rows)} row(s), the first being row {rows[0]}"),
            "be finite",
            "Drop or fill those rows.",
        )
    return y


def _check_labels(y: np.ndarray, classes: int, allowed: str, remedy: str) -> None:
    bad = y[(y < 0) | (y >= classes) | (y != np.floor(y))]
    if bad.size:
        refuse("y", Shown(f"the label {bad[0]}"), f"hold only whole labels {allowed}", remedy)


def _check_positive(argument: str, value: Any, remedy: str = "") -> None:
    number = np.asarray(value)
    if not np.issubdtype(number.dtype, np.number):
        refuse(argument, value, "be a positive number", remedy)
    if not (np.all(np.isfinite(number)) and np.all(number > 0)):
        refuse(argument, value, "be positive and finite", remedy)
