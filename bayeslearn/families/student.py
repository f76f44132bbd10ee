r"""The matrix-normal inverse-Wishart: unknown linear weights and noise covariance.

    Sigma ~ IW(scale, dof),   B | Sigma ~ MN(location, prec^-1, Sigma)

B is (features, columns), Sigma (columns, columns); with one column it is the normal-inverse-gamma,
sigma^2 ~ IG(dof / 2, scale / 2). The prediction at features x is Student's t,

    y ~ t(location^T x, scale (1 + x^T prec^-1 x) / nu, nu),   nu = dof - columns + 1

with E[Sigma] = scale / (dof - columns - 1) aleatoric and x^T prec^-1 x E[Sigma] epistemic.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from bayeslearn import tree
from bayeslearn.errors import ArgumentError, NotAvailableError, Shown, refuse
from bayeslearn.families.base import ClosedForm
from bayeslearn.models.priors.base import BoundPrior
from bayeslearn.numerics import log_abs_det
from bayeslearn.precision import double_precision
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.tree import Array, PyTree

if TYPE_CHECKING:
    from bayeslearn.models.likelihoods.base import Likelihood
    from bayeslearn.models.target import Target


class MatrixNormalInverseWishart(eqx.Module):
    """The distribution of (B, Sigma)."""

    location: Array  # (features, columns)
    prec: Array  # (features, features)
    scale: Array  # (columns, columns)
    dof: Array

    @property
    def columns(self) -> int:
        """Columns of y."""
        return self.scale.shape[0]

    def mean_noise(self) -> Array:
        """E[Sigma]."""
        return self.scale / (self.dof - self.columns - 1.0)

    def log_normaliser(self) -> Array:
        """log Z of the density exp(kernel) / Z; the evidence is a difference of these."""
        p, d = self.location.shape
        return (
            0.5 * p * d * jnp.log(2 * jnp.pi)
            - 0.5 * d * log_abs_det(self.prec)
            + 0.5 * self.dof * (d * jnp.log(2.0) - log_abs_det(self.scale))
            + jax.scipy.special.multigammaln(0.5 * self.dof, d)
        )

    def log_prob(self, weights: Array, noise: Array) -> Array:
        """Log-density of B and Sigma."""
        p, d = self.location.shape
        centred = weights - self.location
        square = self.scale + centred.T @ self.prec @ centred
        kernel = -0.5 * (self.dof + d + 1.0 + p) * log_abs_det(noise)
        kernel -= 0.5 * jnp.trace(jnp.linalg.solve(noise, square))
        return kernel - self.log_normaliser()

    @partial(jax.jit, static_argnums=2)
    def sample(self, key: Array, num: int) -> tuple[Array, Array]:
        """`num` pairs (B, Sigma), the second by Bartlett's decomposition."""
        (p, d), dtype = self.location.shape, self.scale.dtype
        key_chi, key_lower, key_weights = jax.random.split(key, 3)
        chi = jax.random.chisquare(key_chi, self.dof - jnp.arange(d), (num, d), dtype)
        lower = jnp.tril(jax.random.normal(key_lower, (num, d, d), dtype), -1)
        lower = lower + jax.vmap(jnp.diag)(jnp.sqrt(chi))
        # W = T T^T is Wishart, and Sigma = R W^-1 R^T with scale = R R^T has the root R T^-T.
        root = jnp.linalg.cholesky(self.scale)
        roots = jax.vmap(lambda t: jax.scipy.linalg.solve_triangular(t, root.T, lower=True).T)(
            lower
        )
        noise = jax.random.normal(key_weights, (num, p, d), dtype)
        prec_root = jnp.linalg.cholesky(self.prec)
        scaled = jax.vmap(
            lambda z: jax.scipy.linalg.solve_triangular(prec_root, z, lower=True, trans=1)
        )(noise)
        weights = self.location + jnp.einsum("npd,ned->npe", scaled, roots)
        return weights, jnp.einsum("nij,nkj->nik", roots, roots)

    def predict(self, x: Array) -> tuple[Array, Array, Array]:
        """At features (rows, p): location (rows, d), x^T prec^-1 x (rows,), degrees of freedom."""
        leverage = jnp.sum(x * jnp.linalg.solve(self.prec, x.T).T, axis=1)
        return x @ self.location, leverage, self.dof - self.columns + 1.0


class ConjugateFamily(ClosedForm):
    """The matrix-normal inverse-Wishart over the parameters of a linear model.

    `order[o]` are the positions of output o's weights in the network's parameter vector. The
    likelihood's `log_noise_scale` is half the log of Sigma's diagonal. Correlations of the noise
    between columns, which a Gaussian likelihood does not have, are only in `exact`.
    """

    exact: MatrixNormalInverseWishart
    order: Array
    like: PyTree  # parameters of the model, for their shapes and types

    def _tree(self, weights: Array, log_noise: Array) -> PyTree:
        """B and the log noise scale as parameters of the model."""
        network = self.like["network"]
        vector = jnp.zeros(tree.size(network), jnp.float64).at[self.order].set(weights.T)
        cast = jax.tree.map(
            lambda v, w: v.astype(w.dtype), tree.unraveler(network)(vector), network
        )
        return {"network": cast, "likelihood": {"log_noise_scale": log_noise}}

    @property
    @double_precision
    def mean(self) -> PyTree:
        """Mean of each parameter."""
        log_noise = 0.5 * (
            jnp.log(0.5 * self._diagonal()) - jax.scipy.special.digamma(self._half())
        )
        return self._tree(self.exact.location, log_noise)

    @property
    @double_precision
    def std(self) -> PyTree:
        """Standard deviation of each parameter."""
        var = jnp.outer(
            jnp.diagonal(jnp.linalg.inv(self.exact.prec)), jnp.diagonal(self.exact.mean_noise())
        )
        log_noise = 0.5 * jnp.sqrt(jax.scipy.special.polygamma(1, self._half()))
        log_noise = jnp.full(self.exact.columns, log_noise)
        return self._tree(jnp.sqrt(var), log_noise)

    def _diagonal(self) -> Array:
        return jnp.diagonal(self.exact.scale)

    def _half(self) -> Array:
        """The shape of each variance's inverse-gamma; its rate is half the entry of `scale`."""
        return 0.5 * (self.exact.dof - self.exact.columns + 1.0)

    @double_precision
    def mean_vector(self) -> Array:
        """The mean as one vector (k,)."""
        return tree.ravel(tree.double(self.mean))

    @double_precision
    def sample(self, key: Array, num: int) -> PyTree:
        """`num` draws along a leading axis."""
        weights, noise = self.exact.sample(key, num)
        log_noise = 0.5 * jnp.log(jnp.diagonal(noise, axis1=1, axis2=2))
        return jax.vmap(self._tree)(weights, log_noise)

    @double_precision
    def predictive(self, target: Target, x: PyTree) -> StudentPredictive:
        """The exact predictive distribution at rows of x."""
        offset, jacobian = linear_parts(target, self.like, x)
        features = jacobian[:, 0, self.order[0]]
        location, leverage, dof = self.exact.predict(features)
        return StudentPredictive(
            target.likelihood,
            np.asarray(offset + location),
            np.asarray(leverage),
            np.asarray(self.exact.scale),
            float(dof),
        )


class ConjugatePrior(BoundPrior):
    """A `ConjugateFamily` as the prior of a sequential update by `bl.Conjugate`."""

    is_gaussian: ClassVar[bool] = True  # of the weights, given the noise
    is_independent: ClassVar[bool] = False

    exact: MatrixNormalInverseWishart
    order: Array

    def log_prob_terms(self, params: PyTree) -> PyTree:
        """The log-density at noise without correlations, all in the term of the likelihood."""
        weights = tree.ravel(tree.double(params["network"]))[self.order].T
        log_noise = params["likelihood"]["log_noise_scale"]
        density = self.exact.log_prob(weights, jnp.diag(jnp.exp(2.0 * log_noise)))
        jacobian = jnp.sum(2.0 * log_noise + jnp.log(2.0))
        terms = jax.tree.map(lambda leaf: jnp.zeros((), jnp.float64), params)
        return terms | {"likelihood": {"log_noise_scale": density + jacobian}}


class FrozenMarginal(Protocol):
    """A distribution of SciPy with its parameters."""

    def ppf(self, q: float) -> np.ndarray:
        """Quantile function."""
        ...

    def cdf(self, x: np.ndarray) -> np.ndarray:
        """Distribution function."""
        ...


class StudentPredictive(PredictiveBase):
    """A multivariate t at each row, in closed form."""

    kind = "regression"
    is_discrete = False
    num_samples = 0

    def __init__(
        self,
        likelihood: Likelihood,
        location: np.ndarray,
        leverage: np.ndarray,
        scale: np.ndarray,
        dof: float,
    ):
        self._likelihood, self._location, self._leverage = likelihood, location, leverage
        self._scale, self.dof = scale, dof
        self.num_rows = len(location)

    def __repr__(self) -> str:
        return f"StudentPredictive(rows={self.num_rows}, dof={self.dof:g})"

    @property
    def location(self) -> np.ndarray:
        """Location of each row, shaped like y."""
        return self._like_y(self._location)

    @property
    def scale(self) -> np.ndarray:
        """Scale matrix of each row: (rows, columns, columns)."""
        return (1.0 + self._leverage)[:, None, None] * self._scale / self.dof

    @property
    def mean(self) -> np.ndarray:
        """Predictive mean, shaped like y."""
        return self.location

    def _mean_noise(self) -> np.ndarray:
        """E[Sigma]."""
        if self.dof <= 2:
            raise ArgumentError("The prediction has no variance with so few rows; use `interval`.")
        return self._scale / (self.dof - 2.0)

    @property
    def aleatoric(self) -> np.ndarray:
        """Aleatoric uncertainty: the mean noise variance."""
        noise = np.diagonal(self._mean_noise())
        return self._like_y(np.broadcast_to(noise, self._location.shape).copy())

    @property
    def epistemic(self) -> np.ndarray:
        """Epistemic uncertainty: the leverage times the mean noise variance."""
        return self._like_y(self._leverage[:, None] * np.diagonal(self._mean_noise()))

    def covariance(self) -> np.ndarray:
        """Covariance of a new observation's columns: (rows, columns, columns)."""
        return (1.0 + self._leverage)[:, None, None] * self._mean_noise()

    def align_y(self, y: ArrayLike) -> np.ndarray:
        """Observations checked and shaped like the predictions."""
        return self._like_y(self._check_y(y))

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """log p(y) of each row."""
        from scipy.special import gammaln

        residual, scale = self._check_y(y) - self._location, self.scale
        d, nu = residual.shape[1], self.dof
        square = np.sum(residual * np.linalg.solve(scale, residual[..., None])[..., 0], axis=1)
        constant = gammaln((nu + d) / 2) - gammaln(nu / 2) - d / 2 * np.log(nu * np.pi)
        log_det = np.linalg.slogdet(scale)[1]
        return constant - 0.5 * log_det - (nu + d) / 2 * np.log1p(square / nu)

    def log_prob_by_draw(self, y: ArrayLike) -> np.ndarray:
        """Not available: the prediction is in closed form."""
        raise NotAvailableError(
            "A prediction in closed form has no draws; pass `num_samples` to `predict`."
        )

    def quantiles(self, qs: Sequence[float]) -> list[np.ndarray]:
        """Several quantiles of a new observation, by column."""
        return [self._like_y(self._marginal().ppf(q)) for q in qs]

    def cdfs(self, points: Sequence[ArrayLike]) -> list[np.ndarray]:
        """Distribution function at several y of each row, by column."""
        return [self._like_y(self._marginal().cdf(self._check_y(y))) for y in points]

    def sample(self, key: Array | int, num: int = 1) -> np.ndarray:
        """New observations (num, rows, ...)."""
        key = jax.random.key(key) if isinstance(key, int | np.integer) else key
        seed = np.asarray(jax.random.bits(key, (4,), "uint32"))
        rng = np.random.default_rng(seed)
        noise = rng.standard_normal((num, *self._location.shape))
        scaled = np.einsum("rij,nrj->nri", np.linalg.cholesky(self.scale), noise)
        chi = rng.chisquare(self.dof, (num, self.num_rows, 1)) / self.dof
        values = self._location + scaled / np.sqrt(chi)
        return values[..., 0] if self._likelihood.is_vector else values

    def _marginal(self) -> FrozenMarginal:
        """Student's t of each row and column."""
        from scipy.stats import t

        scale = np.sqrt(np.diagonal(self.scale, axis1=1, axis2=2))
        return t(self.dof, self._location, scale)

    def _check_y(self, y: ArrayLike) -> np.ndarray:
        """y as (rows, columns)."""
        y = np.asarray(self._likelihood.check(np.asarray(y)), np.float64)
        if len(y) != self.num_rows:
            refuse("y", Shown(f"{len(y)} rows"), f"have as many rows as x ({self.num_rows})")
        return y

    def _like_y(self, values: np.ndarray) -> np.ndarray:
        """(rows, columns) in the shape of y."""
        return values[:, 0] if self._likelihood.is_vector else values


@jax.jit
def linear_parts(target: Target, params: PyTree, x: PyTree) -> tuple[Array, Array]:
    """Outputs at zero weights (rows, o), and derivatives by the network's weights (rows, o, k)."""
    network = params["network"]
    zero = jnp.zeros_like(tree.ravel(network))
    unravel = tree.unraveler(network)

    def outputs(vector: Array, row: PyTree) -> Array:
        return target.outputs({**params, "network": unravel(vector)}, row)[0]

    def one(row: PyTree) -> tuple[Array, Array]:
        row = jax.tree.map(lambda leaf: leaf[None], row)
        return outputs(zero, row), jax.jacrev(outputs)(zero, row)

    rows = len(jax.tree.leaves(x)[0])
    parts = jax.lax.map(one, x, batch_size=min(rows, 1024))
    return jax.tree.map(lambda part: part.astype(jnp.float64), parts)
