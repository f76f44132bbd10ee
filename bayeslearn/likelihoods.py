"""Likelihoods: how one observation follows from the network's output.

Each likelihood is written by a person (`Gaussian()`), bound to the observations it will explain
(`bind(y)` checks them and fixes what depends on them), and then speaks of ONE example and ONE
set of weights. `params` are the likelihood's own parameters (the log noise scale), inferred like
weights. `kind` tells how a predictive is summed up: by moments ("regression") or by class
probabilities ("classification").

An unknown noise covariance (`MultivariateGaussian()`) is the one thing that is not a parameter: its
posterior given the weights is known, so that samplers integrate it out and the other methods update
it in closed form (`marginal`, `refresh`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc, digamma, gammaln, multigammaln

from bayeslearn import tree
from bayeslearn.errors import Shown, refuse
from bayeslearn.precision import double_precision
from bayeslearn.tree import Array

Params = dict[str, Array]

LOG_2PI = 1.8378770664093453
LARGEST = 10.0  # a heteroscedastic scale stays within this many e-folds of the spread of y
REFRESH_CELLS = 2**16  # draws x rows that a refresh evaluates; at least 4 and at most 256 draws
TAIL_STEP, TAIL_NODES = 0.01, 1220  # of the table of Student's t
OWN_SAMPLES = 256  # per draw, where a custom likelihood does not say its moments


class Likelihood(eqx.Module):
    """What every likelihood answers.

    Those of kind "regression" also have `mean`, `variance` and `covariance` of one observation and,
    where it is known, its distribution function `cdf`, column by column.
    """

    kind: ClassVar[str]
    is_discrete: ClassVar[bool] = False  # observations are whole numbers
    is_marginal: ClassVar[bool] = False  # the rows are not independent given the weights
    refreshes: ClassVar[bool] = False  # `refresh` updates a posterior of its own

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

    def covariance(self, outputs: Array, params: Params) -> Array:
        """Between the columns of one observation; independent unless a likelihood says more."""
        return jnp.diag(self.variance(outputs, params))  # type: ignore[attr-defined]

    def information(self, outputs: Array, y: Array, params: Params) -> Array:
        """Expected (Fisher) information about the outputs: (num_outputs, num_outputs).

        It is the curvature at y wherever that does not depend on y.
        """
        return -jax.hessian(lambda o: self.log_prob(o, y, params))(outputs)

    def marginal(self) -> Likelihood:
        """The form that samplers see."""
        return self

    def to_predict(self) -> Likelihood:
        """The form that new observations follow."""
        return self

    def divergence(self) -> Array | float:
        """KL from its prior of what `refresh` updates: a part of the lower bound."""
        return 0.0

    def as_prior(self, num_data: Array, own: Params) -> Likelihood:
        """For new rows, with what `num_data` rows taught it beside its parameters.

        `own` is the likelihood's part of a posterior's mean or draws.
        """
        return self


class _Columns(Likelihood):
    """What likelihoods of a table of numbers share: y is (rows, columns)."""

    kind: ClassVar[str] = "regression"

    columns: eqx.AbstractVar[int | None]

    def check(self, y: np.ndarray) -> np.ndarray:
        return _table(y, self.columns)[0]

    @property
    def num_outputs(self) -> int:
        return int(self.columns or 1)


class Gaussian(_Columns):
    """Gaussian noise around the network's output.

    `noise_scale` is its standard deviation when it is known (one number, or one per column of
    y). Left out, its logarithm is learned along with the weights, one per column, with the prior
    Normal(log sd(y), `noise_prior_scale`). Aleatoric uncertainty is the noise variance.
    """

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
        table, columns = _table(y)
        if self.noise_scale is not None and np.shape(self.noise_scale) not in ((), (columns,)):
            refuse("noise_scale", self.noise_scale, f"be one number or {columns} (columns of y)")
        learned = self.noise_scale is None
        bound = Gaussian(
            self.noise_scale,
            self.noise_prior_scale,
            columns=columns,
            center=jnp.asarray(np.log(_spread(table)), jnp.float64) if learned else None,
            is_vector=np.ndim(y) == 1,
        )
        return bound, table

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
        if self.columns == 1:  # numbers: rows of one column are not vectorised on a CPU
            outputs, y, std = (jnp.reshape(a, ()) for a in (outputs, y, std))
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


class HeteroscedasticGaussian(_Columns):
    """Gaussian noise whose scale depends on the input.

    The network gives two outputs for each column of y: all means first, then for each column how
    much larger than the spread of y its noise is, as a logarithm a. The noise scale is
    sd(y) exp(10 tanh(a / 10)): a itself near zero, and never beyond exp(+-10), so that no
    input, however far, makes it overflow. Aleatoric uncertainty is the noise variance, which
    follows the input.
    """

    columns: int | None = eqx.field(default=None, static=True, kw_only=True)
    center: Any = eqx.field(default=None, kw_only=True)
    is_vector: bool = eqx.field(default=False, static=True, kw_only=True)

    def bind(self, y: np.ndarray) -> tuple[HeteroscedasticGaussian, np.ndarray]:
        table, columns = _table(y)
        center = jnp.asarray(np.log(_spread(table)), jnp.float64)
        vector = np.ndim(y) == 1
        return HeteroscedasticGaussian(columns=columns, center=center, is_vector=vector), table

    @property
    def num_outputs(self) -> int:
        return 2 * int(self.columns or 1)

    def log_std(self, outputs: Array) -> Array:
        raw = outputs[len(outputs) // 2 :]
        return jnp.asarray(self.center, raw.dtype) + LARGEST * jnp.tanh(raw / LARGEST)

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        log_std = self.log_std(outputs)
        z = (y - self.mean(outputs, params)) * jnp.exp(-log_std)
        return jnp.sum(-0.5 * z**2 - log_std - 0.5 * LOG_2PI)

    def mean(self, outputs: Array, params: Params) -> Array:
        return outputs[: len(outputs) // 2]

    def variance(self, outputs: Array, params: Params) -> Array:
        return jnp.exp(2.0 * self.log_std(outputs))

    def cdf(self, outputs: Array, y: Array, params: Params) -> Array:
        std = jnp.exp(self.log_std(outputs))
        return jax.scipy.stats.norm.cdf(y, self.mean(outputs, params), std)

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        mean = self.mean(outputs, params)
        noise = jax.random.normal(key, mean.shape, mean.dtype)
        return mean + jnp.exp(self.log_std(outputs)) * noise

    def information(self, outputs: Array, y: Array, params: Params) -> Array:
        """The curvature at y is indefinite; its expectation is 1 / variance and 2 per log scale."""
        raw = outputs[len(outputs) // 2 :]
        slope = 1.0 - jnp.tanh(raw / LARGEST) ** 2
        return jnp.diag(jnp.concatenate([jnp.exp(-2.0 * self.log_std(outputs)), 2.0 * slope**2]))


class MultivariateGaussian(_Columns):
    r"""Gaussian noise that is correlated between the columns of y.

    `cov` is its covariance when it is known: (columns, columns), positive definite. Left out, it
    is inferred under the prior IW(`degrees`, `scale`) (inverse-Wishart), independent of the
    weights': the survey's product prior. `degrees` is columns + 2 unless said, the least whole
    number with a mean, and `scale`, (columns, columns), the variances of y on a diagonal: the prior
    mean of the covariance is then the spread of y, worth about one row.

    With R the residuals of N rows, the covariance given the weights is IW(degrees + N,
    scale + R^T R). **Samplers** see the density with the covariance integrated out,

        log p(Y | w) = const - (degrees + N) / 2 log|scale + R^T R|,

    and draw it for each kept draw: `params["likelihood"]["cov"]`. **All others** keep
    q(cov) = IW(degrees + N, scale + E_q[R^T R]), its exact coordinate update, between rounds of
    steps (E_q by draws, on all rows), and maximise E_q(cov)[log p(y | w, cov)] in them; the lower
    bound holds KL(q(cov) || prior). Taking weights and covariance as independent makes q(cov) the
    narrower and E[cov] the smaller the fewer rows there are per weight. `mean_noise()` is E[cov].

    Aleatoric uncertainty is the covariance's diagonal, averaged over draws or q. A prediction
    under q(cov) is the multivariate t that integrates it out.
    """

    cov: Any = None
    degrees: Any = None
    scale: Any = None
    columns: int | None = eqx.field(default=None, static=True, kw_only=True)
    is_vector: bool = eqx.field(default=False, static=True, kw_only=True)
    root: Any = eqx.field(default=None, kw_only=True)  # Cholesky: of cov, or of q's scale
    dof: Any = eqx.field(default=None, kw_only=True)  # of q
    tails: Any = eqx.field(default=None, kw_only=True)  # of the t that predicts
    role: str = eqx.field(default="train", static=True, kw_only=True)

    def __check_init__(self) -> None:
        if self.columns is not None:  # bound, and checked before
            return
        if self.cov is not None:
            _check_spd("cov", self.cov, "Leave it out to have it learned.")
            for name in ("degrees", "scale"):
                if getattr(self, name) is not None:
                    must = "be left out where `cov` is known"
                    refuse(name, getattr(self, name), must)
        if self.degrees is not None:
            _check_positive("degrees", self.degrees)
            if np.ndim(self.degrees):
                refuse("degrees", self.degrees, "be one number")
        if self.scale is not None:
            _check_spd("scale", self.scale)

    def bind(self, y: np.ndarray) -> tuple[MultivariateGaussian, np.ndarray]:
        table, d = _table(y)
        for name in ("cov", "scale"):
            value = getattr(self, name)
            if value is not None and np.shape(value) != (d, d):
                refuse(name, Shown(f"shape {np.shape(value)}"), f"be ({d}, {d}) for this y")
        shape: dict[str, Any] = {"columns": d, "is_vector": np.ndim(y) == 1}
        if self.cov is not None:
            cov = jnp.asarray(self.cov, jnp.float64)
            return MultivariateGaussian(cov, **shape, root=jnp.linalg.cholesky(cov)), table
        degrees = d + 2.0 if self.degrees is None else float(self.degrees)
        least = max(d - 1, d + 1 - len(table))  # for a proper prior, and for a mean after the data
        if degrees <= least:
            refuse("degrees", self.degrees, f"be greater than {least} for {d} column(s) of y")
        scale = np.diag(_spread(table) ** 2) if self.scale is None else self.scale
        scale = np.asarray(scale, np.float64)
        centred = np.asarray(table, np.float64) - np.mean(table, axis=0)
        # Before a fit knows better, residuals are those of a constant.
        bound = MultivariateGaussian(
            degrees=jnp.asarray(degrees, jnp.float64),
            scale=jnp.asarray(scale, jnp.float64),
            **shape,
            root=jnp.linalg.cholesky(jnp.asarray(scale + centred.T @ centred, jnp.float64)),
            dof=jnp.asarray(degrees + len(table), jnp.float64),
        )
        return bound, table

    # The noise of one observation

    def _noise(self, params: Params) -> _Noise:
        if "cov" in params:
            return _Noise(jnp.linalg.cholesky(params["cov"]))
        if self.dof is None:
            return _Noise(self.root)
        if self.role == "predict":
            dof = self._predictive_dof()
            return _Noise(self.root / jnp.sqrt(dof), dof, self.tails)
        return _Noise(self.root / jnp.sqrt(self.dof))  # its precision is E_q[cov^-1]

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        noise = self._noise(params)
        found = noise.log_prob(y - outputs)
        if "cov" in params or self.dof is None or self.role == "predict":
            return found
        # E_q[log|cov|] in place of -log|E_q[cov^-1]|
        return found + noise.log_det() - 0.5 * expected_log_det(self.dof, self.root)

    def mean(self, outputs: Array, params: Params) -> Array:
        return outputs

    def variance(self, outputs: Array, params: Params) -> Array:
        return jnp.diagonal(self._noise(params).cov())

    def covariance(self, outputs: Array, params: Params) -> Array:
        return self._noise(params).cov()

    def cdf(self, outputs: Array, y: Array, params: Params) -> Array:
        return self._noise(params).cdf(y - outputs)

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        return outputs + self._noise(params).sample(key)

    # Where the covariance is unknown

    @double_precision
    def mean_noise(self) -> Array:
        """E[cov] under q, or the known one."""
        cov = self.root @ self.root.T
        return cov if self.dof is None else cov / (self.dof - self.num_outputs - 1.0)

    @property
    def is_marginal(self) -> bool:  # type: ignore[override]
        return self.role == "marginal"

    @property
    def refreshes(self) -> bool:  # type: ignore[override]
        return self.dof is not None and self.role == "train"

    def marginal(self) -> MultivariateGaussian:
        return self if self.dof is None else dataclasses.replace(self, role="marginal")

    def as_prior(self, num_data: Array, own: Params) -> MultivariateGaussian:
        if self.dof is None:
            return self
        degrees = self.degrees + num_data
        scale = self.root @ self.root.T
        if "cov" in own:  # a sampler's draws: the inverse-Wishart with their mean
            covs = own["cov"].reshape(-1, self.num_outputs, self.num_outputs)
            scale = (degrees - self.num_outputs - 1.0) * jnp.mean(covs, axis=0)
        root = jnp.linalg.cholesky(scale)
        new = {"degrees": degrees, "scale": scale, "root": root, "dof": degrees}
        return dataclasses.replace(self, **new, role="train")

    def to_predict(self) -> MultivariateGaussian:
        if self.dof is None or self.role == "predict":
            return self
        tails = student_tails(self._predictive_dof())
        return dataclasses.replace(self, role="predict", tails=tails)

    def _predictive_dof(self) -> Array:
        return self.dof - self.num_outputs + 1.0

    def divergence(self) -> Array | float:
        if self.dof is None:
            return 0.0
        return inverse_wishart_kl(self.dof, self.root, self.degrees, self.scale)

    def refresh(self, target: Any, q: Any, key: Array) -> MultivariateGaussian:
        """q(cov) given q: its exact coordinate update, on all rows."""
        num = int(np.clip(REFRESH_CELLS // len(target.data.y), 4, 256))
        if hasattr(q, "transform"):  # in mirrored pairs, which cancel what is odd
            half = tree.normal_like(key, q.mean, num // 2)
            draws = jax.vmap(q.transform)(jax.tree.map(lambda e: jnp.concatenate([e, -e]), half))
        else:
            draws = q.sample(key, num)
        squares = jax.lax.map(lambda w: self._squares(target, w), draws)
        root = jnp.linalg.cholesky(self.scale + jnp.mean(squares, axis=0))
        dof = self.degrees + target.num_data
        return eqx.tree_at(lambda m: (m.root, m.dof), self, (root, dof))

    def log_marginal(self, target: Any, params: Any, key: Array | None = None) -> Array:
        """log p(Y | w) of all rows, the covariance integrated out."""
        d, num_data = self.num_outputs, target.num_data
        dof = self.degrees + num_data
        return (
            multigammaln(0.5 * dof, d)
            - multigammaln(0.5 * self.degrees, d)
            - 0.5 * num_data * d * jnp.log(jnp.pi)
            + 0.5 * self.degrees * _log_det(self.scale)
            - 0.5 * dof * _log_det(self.scale + self._squares(target, params, key))
        )

    def complete(self, target: Any, params: Any, key: Array) -> Params:
        """The likelihood's part of a sampler's draw: the covariance, drawn given the weights."""
        scale = self.scale + self._squares(target, params)
        return {"cov": sample_inverse_wishart(key, self.degrees + target.num_data, scale)}

    def _squares(self, target: Any, params: Any, key: Array | None = None) -> Array:
        """R^T R over all rows."""
        data = target.data
        residuals = data.y.astype(jnp.float64) - target.outputs(params, data.x, key)
        if data.weight is not None:
            residuals = residuals * jnp.sqrt(data.weight)[:, None]
        return residuals.T @ residuals * target.scale()


class Poisson(Likelihood):
    """Counts 0, 1, 2, ...; the network gives the logarithm of the rate for each column of y.

    Its predictive is summed up by moments; quantiles and intervals are whole numbers, an interval
    the smallest central one that holds at least its level. Aleatoric uncertainty is the mean rate.
    """

    kind: ClassVar[str] = "regression"
    is_discrete: ClassVar[bool] = True

    columns: int | None = eqx.field(default=None, static=True, kw_only=True)
    is_vector: bool = eqx.field(default=False, static=True, kw_only=True)

    def bind(self, y: np.ndarray) -> tuple[Poisson, np.ndarray]:
        columns = _table(y)[1]
        bound = Poisson(columns=columns, is_vector=np.ndim(y) == 1)
        return bound, bound.check(y)

    def check(self, y: np.ndarray) -> np.ndarray:
        table, _ = _table(y, self.columns)
        bad = table[(table < 0) | (table != np.floor(table)) | (table > np.iinfo(np.int32).max)]
        if bad.size:
            must = "hold only whole numbers from 0 to 2**31 - 1"
            refuse("y", Shown(f"the count {bad.flat[0]}"), must)
        return table.astype(np.int32)

    @property
    def num_outputs(self) -> int:
        return int(self.columns or 1)

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        # In double precision: large counts cancel against their rate.
        log_rate, y = _double(outputs), _double(y)
        return jnp.sum(y * log_rate - jnp.exp(log_rate) - gammaln(y + 1.0))

    def mean(self, outputs: Array, params: Params) -> Array:
        return jnp.exp(outputs)

    def variance(self, outputs: Array, params: Params) -> Array:
        return jnp.exp(outputs)

    def cdf(self, outputs: Array, y: Array, params: Params) -> Array:
        return jax.scipy.stats.poisson.cdf(y, jnp.exp(outputs))

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        return jax.random.poisson(key, jnp.exp(_double(outputs)))


class Custom(Likelihood):
    """A likelihood of your own, in functions of one example.

    `log_prob(outputs, y)` is the log-probability of y given the network's `num_outputs` outputs,
    and `sample(key, outputs)` draws a y; y is one row of what is fitted: a number where y is
    (rows,), a vector where it is (rows, columns). `mean(outputs)` and `variance(outputs)`, each
    shaped like y, are estimated from 256 samples if left out. Quantiles and `cdf` are estimated
    from samples. Aleatoric uncertainty is the variance, averaged over draws. Gauss-Newton methods
    use the curvature of `log_prob` at y, its negative directions dropped.
    """

    kind: ClassVar[str] = "regression"

    own_log_prob: Callable[..., Array] = eqx.field(static=True)
    own_sample: Callable[..., Array] = eqx.field(static=True)
    own_outputs: int = eqx.field(static=True)
    own_mean: Callable[..., Array] | None = eqx.field(static=True)
    own_variance: Callable[..., Array] | None = eqx.field(static=True)
    columns: int | None = eqx.field(static=True)
    is_vector: bool = eqx.field(static=True)

    def __init__(
        self,
        log_prob: Callable[..., Array],
        sample: Callable[..., Array],
        num_outputs: int = 1,
        *,
        mean: Callable[..., Array] | None = None,
        variance: Callable[..., Array] | None = None,
        columns: int | None = None,
        is_vector: bool = False,
    ):
        for name, value in (("log_prob", log_prob), ("sample", sample)):
            if not callable(value):
                refuse(name, value, "be a function")
        for name, optional in (("mean", mean), ("variance", variance)):
            if not (optional is None or callable(optional)):
                refuse(name, optional, "be a function of the outputs, or left out")
        is_whole = isinstance(num_outputs, int | np.integer) and not isinstance(num_outputs, bool)
        if not is_whole or num_outputs < 1:
            refuse("num_outputs", num_outputs, "be a whole number of at least 1")
        self.own_log_prob, self.own_sample, self.own_outputs = log_prob, sample, int(num_outputs)
        self.own_mean, self.own_variance = mean, variance
        self.columns, self.is_vector = columns, is_vector

    def bind(self, y: np.ndarray) -> tuple[Custom, np.ndarray]:
        table, columns = _table(y)
        bound = Custom(
            self.own_log_prob,
            self.own_sample,
            self.own_outputs,
            mean=self.own_mean,
            variance=self.own_variance,
            columns=columns,
            is_vector=np.ndim(y) == 1,
        )
        bound._check_functions(jnp.asarray(table[0]))
        return bound, table

    def _check_functions(self, y: Array) -> None:
        outputs = jnp.zeros(self.own_outputs)
        told = jax.eval_shape(self.own_log_prob, outputs, self._row(y))
        if getattr(told, "shape", None) != ():
            refuse("log_prob", Shown(f"a function that returns {told}"), "return one number")
        told = jax.eval_shape(self.own_sample, jax.random.key(0), outputs)
        if getattr(told, "shape", None) != self._row(y).shape:
            must = f"return one y, of shape {self._row(y).shape}"
            refuse("sample", Shown(f"a function that returns {told}"), must)

    def check(self, y: np.ndarray) -> np.ndarray:
        return _table(y, self.columns)[0]

    @property
    def num_outputs(self) -> int:
        return self.own_outputs

    def _row(self, y: Array) -> Array:
        return y[0] if self.is_vector else y

    def _columns(self, value: Any) -> Array:
        return jnp.reshape(jnp.asarray(value), (int(self.columns or 1),))

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        return self.own_log_prob(outputs, self._row(y))

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        return self._columns(self.own_sample(key, outputs))

    def _samples(self, outputs: Array, params: Params) -> Array:
        # The same noise for every draw, so that it does not pass for spread between them.
        keys = jax.random.split(jax.random.key(0), OWN_SAMPLES)
        return _double(jax.vmap(lambda k: self.sample(k, outputs, params))(keys))

    def mean(self, outputs: Array, params: Params) -> Array:
        if self.own_mean is not None:
            return self._columns(self.own_mean(outputs))
        return jnp.mean(self._samples(outputs, params), axis=0)

    def variance(self, outputs: Array, params: Params) -> Array:
        if self.own_variance is not None:
            return self._columns(self.own_variance(outputs))
        return jnp.var(self._samples(outputs, params), axis=0, ddof=1)

    def covariance(self, outputs: Array, params: Params) -> Array:
        if self.own_variance is not None:
            return jnp.diag(self.variance(outputs, params))
        return jnp.atleast_2d(jnp.cov(self._samples(outputs, params), rowvar=False))


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
        log_odds = outputs[0]  # a number: rows of one column are not vectorised on a CPU
        return jax.nn.log_sigmoid(jnp.where(y == 1, log_odds, -log_odds))

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


def _table(y: Any, wanted: int | None = None) -> tuple[np.ndarray, int]:
    """y as (rows, columns), and how many columns; `wanted` of them if it is said."""
    y = _numeric(y)
    table = y[:, None] if y.ndim == 1 else y
    if wanted is not None and (table.ndim != 2 or table.shape[1] != wanted):
        refuse("y", Shown(f"shape {y.shape}"), f"have {wanted} column(s) as in fitting")
    if table.ndim != 2 or table.shape[1] == 0:
        refuse("y", Shown(f"shape {y.shape}"), "be (rows,) or (rows, columns)")
    return table, table.shape[1]


def _spread(table: np.ndarray) -> np.ndarray:
    """Standard deviation of each column; 1 for a constant one."""
    spread = np.std(table, axis=0)
    return np.where(spread > 0, spread, 1.0)


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


def _check_spd(argument: str, value: Any, remedy: str = "") -> None:
    matrix = np.asarray(value)
    is_square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] > 0
    if not np.issubdtype(matrix.dtype, np.number) or not is_square:
        refuse(argument, value, "be a square matrix of numbers", remedy)
    if not np.all(np.isfinite(matrix)) or not np.allclose(matrix, matrix.T, rtol=1e-6, atol=0):
        refuse(argument, value, "be finite and symmetric", remedy)
    if np.linalg.eigvalsh(matrix)[0] <= 0:
        refuse(argument, value, "be positive definite", remedy)


def _double(values: Array) -> Array:
    return jnp.asarray(values, jnp.result_type(float))


class _Noise(eqx.Module):
    """Correlated noise: Gaussian with covariance root root^T, or t with that scale matrix."""

    root: Array
    dof: Array | None = None
    tails: Array | None = None

    def log_det(self) -> Array:
        """Of the root."""
        return jnp.sum(jnp.log(jnp.diagonal(self.root)))

    def log_prob(self, residual: Array) -> Array:
        d = len(self.root)
        whitener = jax.scipy.linalg.solve_triangular(
            self.root, jnp.eye(d, dtype=self.root.dtype), lower=True
        )
        square = jnp.sum((whitener @ residual) ** 2)
        if self.dof is None:
            return -0.5 * (square + d * LOG_2PI) - self.log_det()
        half = 0.5 * (self.dof + d)
        constant = gammaln(half) - gammaln(0.5 * self.dof) - 0.5 * d * jnp.log(self.dof * jnp.pi)
        return constant - self.log_det() - half * jnp.log1p(square / self.dof)

    def cov(self) -> Array:
        cov = self.root @ self.root.T
        return cov if self.dof is None else cov * self.dof / (self.dof - 2.0)

    def cdf(self, residual: Array) -> Array:
        """Of each column by itself."""
        z = residual / jnp.sqrt(jnp.sum(self.root**2, axis=1))
        if self.dof is None:
            return jax.scipy.stats.norm.cdf(z)
        assert self.tails is not None
        at = jnp.minimum(jnp.arcsinh(jnp.abs(z)) / TAIL_STEP, len(self.tails) - 1.001)
        index = jnp.floor(at).astype(jnp.int32)
        s = at - index
        (left, left_slope), (right, right_slope) = self.tails[index].T, self.tails[index + 1].T
        curve = s**2 * (3.0 - 2.0 * s)  # cubic Hermite interpolation
        tail = left + curve * (right - left)
        tail = tail + s * (1.0 - s) * ((1.0 - s) * left_slope - s * right_slope)
        return jnp.where(z < 0, tail, 1.0 - tail)

    def sample(self, key: Array) -> Array:
        key_normal, key_chi = jax.random.split(key)
        noise = self.root @ jax.random.normal(key_normal, self.root.shape[:1], self.root.dtype)
        if self.dof is None:
            return noise
        chi = jax.random.chisquare(key_chi, self.dof, dtype=self.root.dtype)
        return noise * jnp.sqrt(self.dof / chi)


@jax.jit
def student_tails(dof: Array) -> Array:
    """Upper tail of Student's t at sinh(i TAIL_STEP), and its slope in i.

    One value by the incomplete beta function costs a hundred of a Gaussian's, and a quantile needs
    sixty for each draw, so they are read from this table: to about 1e-10, up to z = 1e5.
    """
    at = TAIL_STEP * jnp.arange(TAIL_NODES, dtype=jnp.result_type(float))
    z = jnp.sinh(at)
    tail = 0.5 * betainc(0.5 * dof, 0.5, dof / (dof + z**2))
    density = jnp.exp(jax.scipy.stats.t.logpdf(z, dof))
    return jnp.stack([tail, -density * jnp.cosh(at) * TAIL_STEP], axis=1)


# The inverse-Wishart IW(dof, scale), scale = root root^T


def sample_inverse_wishart(key: Array, dof: Array, scale: Array) -> Array:
    """One covariance, by Bartlett's decomposition."""
    d, dtype = len(scale), scale.dtype
    key_chi, key_lower = jax.random.split(key)
    chi = jax.random.chisquare(key_chi, dof - jnp.arange(d), (d,), dtype)
    lower = jnp.tril(jax.random.normal(key_lower, (d, d), dtype), -1) + jnp.diag(jnp.sqrt(chi))
    # T T^T is Wishart, and R T^-T a root of its inverse in the frame of scale = R R^T.
    root = jax.scipy.linalg.solve_triangular(lower, jnp.linalg.cholesky(scale).T, lower=True).T
    return root @ root.T


def expected_log_det(dof: Array, root: Array) -> Array:
    """E[log|cov|]."""
    d = len(root)
    log_det = 2.0 * jnp.sum(jnp.log(jnp.diagonal(root)))
    return log_det - d * jnp.log(2.0) - jnp.sum(digamma(0.5 * (dof - jnp.arange(d))))


def inverse_wishart_kl(dof: Array, root: Array, prior_dof: Array, prior_scale: Array) -> Array:
    """KL(IW(dof, root root^T) || IW(prior_dof, prior_scale))."""
    d = len(root)
    log_det = 2.0 * jnp.sum(jnp.log(jnp.diagonal(root)))
    more = dof - prior_dof
    ratio = jnp.trace(jax.scipy.linalg.cho_solve((root, True), prior_scale))
    return (
        0.5 * (dof * log_det - prior_dof * _log_det(prior_scale))
        - 0.5 * more * (d * jnp.log(2.0) + expected_log_det(dof, root))
        - multigammaln(0.5 * dof, d)
        + multigammaln(0.5 * prior_dof, d)
        - 0.5 * dof * (d - ratio)
    )


def _log_det(matrix: Array) -> Array:
    return jnp.linalg.slogdet(matrix).logabsdet
