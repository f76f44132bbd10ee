r"""The Gaussian with a full covariance, represented by a square root of it.

    q(w) = N(mean, C C^T),   w = mean + C eps,   eps ~ N(0, I)

`factor` is C, square and not necessarily triangular: a moving frame (algorithms.md 16b) has a
general one, and C O with O orthogonal is the same q. With z = C^-1 (w - mean):

    log q(w)  = -|z|^2 / 2 - log|det C| - k/2 log(2 pi)
    entropy   = k/2 log(2 pi e) + log|det C|
    KL(q, p)  = (|C_p^-1 C|_F^2 + |C_p^-1 (mean - mean_p)|^2 - k) / 2 + log|det C_p| - log|det C|

Weights are flattened into one vector here and in `block`, and in no other family.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.errors import Shown, refuse
from bayeslearn.families.base import Gaussian
from bayeslearn.geometry import natural as coordinates
from bayeslearn.geometry.natural import Expectation, Natural
from bayeslearn.models.priors.base import BoundPrior
from bayeslearn.models.priors.correlated import BlockPrior, CorrelatedPrior
from bayeslearn.models.priors.gaussian import GaussianPrior
from bayeslearn.numerics import log_abs_det, to_cholesky
from bayeslearn.precision import double_precision
from bayeslearn.tree import Array, PyTree


class FullGaussian(Gaussian):
    """q(w) = N(mean, factor factor^T); `mean` is a pytree like the parameters, `factor` (k, k)."""

    mean: PyTree
    factor: Array

    def __check_init__(self) -> None:
        k = tree.size(self.mean)
        if jnp.shape(self.factor) != (k, k):
            refuse("factor", Shown(f"shape {jnp.shape(self.factor)}"), f"be ({k}, {k}), as `mean`")

    @classmethod
    @double_precision
    def from_cov(cls, mean: PyTree, cov: Array) -> FullGaussian:
        """From the covariance matrix."""
        return cls(tree.double(mean), _cholesky(cov, "cov"))

    @classmethod
    @double_precision
    def from_prec(cls, mean: PyTree, prec: Array) -> FullGaussian:
        """From the precision matrix: P = L L^T gives C = L^-T, without inverting P."""
        lower = _cholesky(prec, "prec")
        eye = jnp.eye(lower.shape[0], dtype=lower.dtype)
        factor = jax.scipy.linalg.solve_triangular(lower, eye, trans="T", lower=True)
        return cls(tree.double(mean), factor)

    @classmethod
    @double_precision
    def from_std(cls, mean: PyTree, std: PyTree) -> FullGaussian:
        """Independent weights; `std` is a number, or a pytree like `mean`."""
        tree.check_dense(tree.size(mean), "a block or diagonal Gaussian")
        return cls(tree.double(mean), jnp.diag(tree.ravel(broadcast_std(std, mean))))

    @property
    @double_precision
    def std(self) -> PyTree:
        """Standard deviation of each weight."""
        return tree.unraveler(self.mean)(jnp.sqrt(self._var()))

    @double_precision
    def mean_vector(self) -> Array:
        """The mean as one vector (k,)."""
        return tree.ravel(tree.double(self.mean))

    @double_precision
    def cov_matrix(self) -> Array:
        """The covariance matrix C C^T."""
        return self.factor @ self.factor.T

    @double_precision
    def prec_matrix(self) -> Array:
        """The precision matrix C^-T C^-1."""
        root = jnp.linalg.inv(self.factor)
        return root.T @ root

    @double_precision
    def cholesky(self) -> Array:
        """The Cholesky factor of the covariance."""
        return to_cholesky(self.factor)

    def to_full(self) -> FullGaussian:
        """Itself."""
        return self

    @double_precision
    def to_prior(self) -> BlockPrior:
        """The same Gaussian as a prior, for new data."""
        groups = (tuple(range(len(jax.tree.leaves(self.mean)))),)
        return BlockPrior.from_precs(tree.double(self.mean), (self.prec_matrix(),), groups)

    @double_precision
    def transform(self, noise: PyTree) -> PyTree:
        """w = mean + C noise; noise is a vector (k,), or a pytree like the parameters."""
        vector = self.mean_vector() + self.factor @ tree.ravel(tree.double(noise))
        values = tree.unraveler(self.mean)(vector)
        return jax.tree.map(lambda w, m: w.astype(jnp.result_type(m)), values, self.mean)

    @double_precision
    def sample(self, key: Array, num: int) -> PyTree:
        """`num` draws along a leading axis."""
        return jax.vmap(self.transform)(tree.normal_like(key, self.mean, num))

    @double_precision
    def log_prob(self, params: PyTree) -> Array:
        """Log-density at one set of parameters."""
        z = self.whiten(tree.ravel(tree.double(params)) - self.mean_vector())
        return -0.5 * (z @ z) - self.log_det() - 0.5 * len(z) * jnp.log(2 * jnp.pi)

    @double_precision
    def entropy(self) -> Array:
        """Differential entropy in nats."""
        return 0.5 * self.factor.shape[0] * jnp.log(2 * jnp.pi * jnp.e) + self.log_det()

    @double_precision
    def kl(self, other: Gaussian | BoundPrior) -> Array:
        """KL(self || other) for any Gaussian: also a Gaussian prior."""
        if isinstance(other, Gaussian) and other.is_independent:
            other = other.to_prior()
        if isinstance(other, CorrelatedPrior):
            square = jnp.sum(self.factor * other.times(self.factor)) + other.quadratic(self.mean)
            log_det_other = -0.5 * other.log_det
        elif isinstance(other, GaussianPrior):
            mean, prec = map(tree.ravel, other.broadcast(tree.double(self.mean)))
            square = prec @ (self._var() + (self.mean_vector() - mean) ** 2)
            log_det_other = -0.5 * jnp.sum(jnp.log(prec))
        elif isinstance(other, Gaussian):
            full = other.to_full()
            shift = self.mean_vector() - full.mean_vector()
            square = jnp.sum(full.whiten(jnp.column_stack([self.factor, shift])) ** 2)
            log_det_other = full.log_det()
        else:
            refuse("other", Shown(f"a {type(other).__name__}"), "be a Gaussian")
        return 0.5 * (square - self.factor.shape[0]) + log_det_other - self.log_det()

    @double_precision
    def natural(self) -> Natural:
        """(P mean, -P/2) as a vector and a matrix; see `geometry.natural`."""
        return coordinates.natural_from_mean_prec(self.mean_vector(), self.prec_matrix())

    @classmethod
    @double_precision
    def from_natural(cls, natural: Natural, like: PyTree) -> FullGaussian:
        """From natural parameters, for parameters like `like`."""
        mean, prec = coordinates.mean_prec_from_natural(natural)
        return cls.from_prec(tree.unraveler(like)(mean), prec)

    @double_precision
    def expectation(self) -> Expectation:
        """(E w, E w w^T) as a vector and a matrix; see `geometry.natural`."""
        return coordinates.expectation_from_mean_cov(self.mean_vector(), self.cov_matrix())

    @classmethod
    @double_precision
    def from_expectation(cls, expectation: Expectation, like: PyTree) -> FullGaussian:
        """From expectation parameters, for parameters like `like`."""
        mean, cov = coordinates.mean_cov_from_expectation(expectation)
        return cls.from_cov(tree.unraveler(like)(mean), cov)

    @double_precision
    def unconstrained(self) -> dict[str, Array]:
        """Unconstrained parameters: "mean" (k,) and "log_cholesky" (k (k + 1) / 2,).

        The second is the lower triangle of `cholesky()`, row by row, with the logarithm of its
        diagonal: minimal coordinates, so that their Fisher matrix is not singular.
        """
        lower = self.cholesky()
        log_cholesky = jnp.tril(lower, -1) + jnp.diag(jnp.log(jnp.diagonal(lower)))
        return {"mean": self.mean_vector(), "log_cholesky": coordinates.vech(log_cholesky)}

    @classmethod
    @double_precision
    def from_unconstrained(cls, values: dict[str, Array], like: PyTree) -> FullGaussian:
        """From unconstrained parameters, for parameters like `like`."""
        log_cholesky = coordinates.unvech(jnp.asarray(values["log_cholesky"]))
        factor = jnp.tril(log_cholesky, -1) + jnp.diag(jnp.exp(jnp.diagonal(log_cholesky)))
        return cls(tree.unraveler(like)(jnp.asarray(values["mean"])), factor)

    def whiten(self, values: Array) -> Array:
        """C^-1 values, for a vector (k,) or columns (k, n)."""
        return jnp.linalg.solve(self.factor, values)

    def log_det(self) -> Array:
        """log|det C|."""
        return log_abs_det(self.factor)

    def _var(self) -> Array:
        """Variance of each weight, as one vector."""
        return jnp.sum(jnp.asarray(self.factor) ** 2, axis=1)


def broadcast_std(std: PyTree, mean: PyTree) -> PyTree:
    """A number, or leaves that broadcast to those of `mean`, as a float64 tree like `mean`."""
    if jax.tree_util.all_leaves([std]):
        std = jax.tree.map(lambda _: std, mean)
    return jax.tree.map(
        lambda m, s: jnp.broadcast_to(jnp.asarray(s, jnp.float64), jnp.shape(m)), mean, std
    )


def _cholesky(matrix: Array, argument: str) -> Array:
    """The Cholesky factor of a matrix that the user has passed."""
    lower = jnp.linalg.cholesky(jnp.asarray(matrix, jnp.float64))
    # Under a trace the values are not known; the caller's guards detect the NaN.
    if not isinstance(lower, jax.core.Tracer) and not np.all(np.isfinite(lower)):
        refuse(argument, Shown("one that is not"), "be a positive definite matrix")
    return lower
