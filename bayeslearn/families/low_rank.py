r"""The Gaussian whose covariance is diagonal plus low rank.

    q(w) = N(mean, D + F F^T),   w = mean + D^1/2 z + F u,   z ~ N(0, I_k),  u ~ N(0, I_r)

`own` is the square root of the diagonal D, and the r columns of F lie along the leading axis of
`factor`'s leaves. With G = I + F^T D^-1 F and z = D^-1/2 (w - mean)

    log|D + F F^T|                     = log|D| + log|G|
    (w - mean)^T (D + F F^T)^-1 (...)  = |z|^2 - |L^-1 F^T D^-1/2 z|^2,   G = L L^T

so that nothing costs more than k r^2.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.errors import Shown, refuse
from bayeslearn.families.base import Gaussian
from bayeslearn.families.block import BlockGaussian
from bayeslearn.families.diagonal import DiagonalGaussian
from bayeslearn.families.full import FullGaussian
from bayeslearn.models.priors.base import BoundPrior
from bayeslearn.models.priors.correlated import CorrelatedPrior, LowRankPrior
from bayeslearn.models.priors.gaussian import GaussianPrior
from bayeslearn.numerics import LOG_2PI
from bayeslearn.precision import double_precision
from bayeslearn.tree import Array, PyTree


class LowRankGaussian(Gaussian):
    """q(w) = N(mean, diag(own^2) + F F^T); the columns of F lead the leaves of `factor`."""

    mean: PyTree
    own: PyTree
    factor: PyTree

    @property
    def rank(self) -> int:
        """Number of columns of F."""
        return jax.tree.leaves(self.factor)[0].shape[0]

    @property
    @double_precision
    def std(self) -> PyTree:
        """Standard deviation of each weight."""
        return jax.tree.map(
            lambda s, f: jnp.sqrt(s**2 + jnp.sum(f**2, axis=0)), self.own, self.factor
        )

    @double_precision
    def mean_vector(self) -> Array:
        """The mean as one vector (k,)."""
        return tree.ravel(tree.double(self.mean))

    @double_precision
    def cov_matrix(self) -> Array:
        """The dense covariance matrix (k, k)."""
        tree.check_dense(tree.size(self.mean), "`std`, the standard deviation of each weight")
        factor = self._columns()
        return jnp.diag(self._own() ** 2) + factor @ factor.T

    @double_precision
    def prec_matrix(self) -> Array:
        """The dense precision matrix (k, k)."""
        tree.check_dense(tree.size(self.mean), "`std`, the standard deviation of each weight")
        return self.to_prior().times(jnp.eye(tree.size(self.mean)))

    def to_full(self) -> FullGaussian:
        """The same Gaussian with a dense factor."""
        return FullGaussian.from_cov(self.mean, self.cov_matrix())

    @double_precision
    def to_prior(self) -> LowRankPrior:
        """The same Gaussian as a prior, for new data."""
        mean = tree.double(self.mean)
        return LowRankPrior.from_factor(mean, self._own() ** 2, self._columns())

    def transform(self, noise: PyTree) -> PyTree:
        """mean + C noise, with a square C of C C^T = D + F F^T.

        With F^T D^-1 F = V diag(l) V^T it is C = D^1/2 + F V diag(1 / (1 + sqrt(1 + l))) V^T F^T
        D^-1/2.
        """
        values, vectors = jnp.linalg.eigh(self._gram())
        shrunk = vectors @ (vectors.T / (1.0 + jnp.sqrt(1.0 + values))[:, None])
        scaled = jax.tree.map(lambda e, s: e / s, noise, self.own)
        along = shrunk @ self._pulled(scaled)
        return self._moved(noise, along)

    @double_precision
    def sample(self, key: Array, num: int) -> PyTree:
        """`num` draws along a leading axis."""
        key_own, key_factor = jax.random.split(key)
        noise = tree.normal_like(key_own, self.mean, num)
        along = jax.random.normal(key_factor, (num, self.rank))
        return jax.vmap(self._moved)(noise, along)

    @double_precision
    def log_prob(self, params: PyTree) -> Array:
        """Log-density at one set of parameters."""
        arrays = map(tree.double, (params, self.mean, self.own))
        z = jax.tree.map(lambda w, m, s: (w - m) / s, *arrays)
        lower = self._lower()
        scaled = jax.tree.map(lambda e, s: e / s, z, tree.double(self.own))
        pulled = jax.scipy.linalg.solve_triangular(lower, self._pulled(scaled), lower=True)
        square = tree.total(jax.tree.map(jnp.square, z)) - jnp.sum(pulled**2)
        return -0.5 * (square + self._log_det(lower) + tree.size(self.mean) * LOG_2PI)

    @double_precision
    def entropy(self) -> Array:
        """Differential entropy in nats."""
        return 0.5 * (tree.size(self.mean) * (LOG_2PI + 1.0) + self._log_det(self._lower()))

    @double_precision
    def kl(self, other: Gaussian | BoundPrior) -> Array:
        """KL(self || other) for any Gaussian: also a Gaussian prior."""
        if isinstance(other, FullGaussian | BlockGaussian):
            return self.to_full().kl(other)
        if isinstance(other, LowRankGaussian):
            other = other.to_prior()
        k = tree.size(self.mean)
        if isinstance(other, CorrelatedPrior):
            factor = self._columns()
            square = jnp.sum(other.diagonal() * self._own() ** 2)
            square += jnp.sum(factor * other.times(factor)) + other.quadratic(self.mean)
            return 0.5 * (square + k * LOG_2PI - other.log_det) - self.entropy()
        if not isinstance(other, DiagonalGaussian | GaussianPrior):
            refuse("other", Shown(f"a {type(other).__name__}"), "be a Gaussian")

        def term(m: Array, s: Array, m0: Array, p0: Array) -> Array:
            return p0 * (s**2 + (m - m0) ** 2) - jnp.log(p0) * jnp.ones_like(m)

        terms = jax.tree.map(term, *map(tree.double, (self.mean, self.std, other.mean, other.prec)))
        return 0.5 * (tree.total(terms) + k * LOG_2PI) - self.entropy()

    def _own(self) -> Array:
        """The square root of D as one vector."""
        return tree.ravel(tree.double(self.own))

    def _columns(self) -> Array:
        """F as a matrix (k, r)."""
        return jax.vmap(tree.ravel)(tree.double(self.factor)).T

    def _pulled(self, values: PyTree) -> Array:
        """F^T values, in double precision."""
        parts = jax.tree.map(
            lambda f, v: f.reshape(len(f), -1).astype(jnp.float64) @ v.reshape(-1),
            self.factor,
            tree.double(values),
        )
        return sum(jax.tree.leaves(parts), start=jnp.zeros(self.rank, jnp.float64))

    def _gram(self) -> Array:
        """F^T D^-1 F."""

        def term(f: Array, s: Array) -> Array:
            rows = (f.astype(jnp.float64) / s.astype(jnp.float64)).reshape(len(f), -1)
            return rows @ rows.T

        parts = jax.tree.leaves(jax.tree.map(term, self.factor, self.own))
        return sum(parts, start=jnp.zeros((self.rank, self.rank), jnp.float64))

    def _lower(self) -> Array:
        return jnp.linalg.cholesky(jnp.eye(self.rank) + self._gram())

    def _log_det(self, lower: Array) -> Array:
        logs = tree.total(jax.tree.map(jnp.log, tree.double(self.own)))
        return 2.0 * (logs + jnp.sum(jnp.log(jnp.diagonal(lower))))

    def _moved(self, noise: PyTree, along: Array) -> PyTree:
        """mean + D^1/2 noise + F along."""
        return jax.tree.map(
            lambda m, s, e, f: m + s * e + jnp.tensordot(along.astype(f.dtype), f, 1),
            self.mean,
            self.own,
            noise,
            self.factor,
        )
