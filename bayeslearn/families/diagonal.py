"""The mean-field Gaussian: independent weights, leaf by leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.errors import Shown, refuse
from bayeslearn.families.base import Gaussian
from bayeslearn.families.block import BlockGaussian
from bayeslearn.families.full import FullGaussian
from bayeslearn.geometry import natural as coordinates
from bayeslearn.geometry.natural import Expectation, Natural
from bayeslearn.models.priors.base import BoundPrior
from bayeslearn.models.priors.correlated import CorrelatedPrior
from bayeslearn.models.priors.gaussian import GaussianPrior
from bayeslearn.precision import double_precision
from bayeslearn.tree import Array, PyTree


class DiagonalGaussian(Gaussian):
    """q(w) = N(mean, diag(std^2)); `mean` and `std` are pytrees like the parameters."""

    is_independent: ClassVar[bool] = True

    mean: PyTree
    std: PyTree

    @property
    def prec(self) -> PyTree:
        """1 / std^2."""
        return jax.tree.map(lambda s: 1.0 / s**2, self.std)

    @double_precision
    def mean_vector(self) -> Array:
        """The mean as one vector (k,)."""
        return tree.ravel(self.mean)

    @double_precision
    def cov_matrix(self) -> Array:
        """The dense covariance matrix (k, k)."""
        tree.check_dense(tree.size(self.mean), "`std`, which has the same numbers")
        return jnp.diag(tree.ravel(self.std) ** 2)

    @double_precision
    def prec_matrix(self) -> Array:
        """The dense precision matrix (k, k)."""
        tree.check_dense(tree.size(self.mean), "`prec`, which has the same numbers")
        return jnp.diag(tree.ravel(self.prec))

    def to_full(self) -> FullGaussian:
        """The same Gaussian with a dense factor."""
        return FullGaussian.from_std(self.mean, self.std)

    @double_precision
    def to_prior(self) -> GaussianPrior:
        """The same Gaussian as a prior, for new data."""
        return GaussianPrior(self.mean, self.prec)

    def transform(self, noise: PyTree) -> PyTree:
        """w = mean + std * noise (the reparametrisation)."""
        return jax.tree.map(lambda m, s, e: m + s * e, self.mean, self.std, noise)

    @double_precision
    def sample(self, key: Array, num: int) -> PyTree:
        """`num` draws along a leading axis."""
        return jax.vmap(self.transform)(tree.normal_like(key, self.mean, num))

    @double_precision
    def log_prob(self, params: PyTree) -> Array:
        """Log-density at one set of parameters."""

        def term(w: Array, m: Array, s: Array) -> Array:
            return -0.5 * ((w - m) / s) ** 2 - jnp.log(s) - 0.5 * jnp.log(2 * jnp.pi)

        return tree.total(jax.tree.map(term, params, self.mean, self.std))

    @double_precision
    def entropy(self) -> Array:
        """Differential entropy in nats."""
        return tree.total(
            jax.tree.map(lambda s: jnp.log(s) + 0.5 * jnp.log(2 * jnp.pi * jnp.e), self.std)
        )

    @double_precision
    def kl(self, other: Gaussian | BoundPrior) -> Array:
        """KL(self || other) for any Gaussian: also a Gaussian prior."""
        if isinstance(other, CorrelatedPrior):
            prec = other.broadcast(tree.double(self.mean))[1]
            square = tree.total(jax.tree.map(lambda s, p: p * s**2, self.std, prec))
            square = square + other.quadratic(self.mean)
            k = tree.size(self.mean)
            return 0.5 * (square + k * jnp.log(2 * jnp.pi) - other.log_det) - self.entropy()
        if isinstance(other, BlockGaussian):
            return BlockGaussian.from_std(self.mean, self.std, other.groups).kl(other)
        if isinstance(other, Gaussian) and not other.is_independent:
            return self.to_full().kl(other)
        if not isinstance(other, DiagonalGaussian | GaussianPrior):
            refuse("other", Shown(f"a {type(other).__name__}"), "be a Gaussian")

        def term(m: Array, s: Array, m0: Array, p0: Array) -> Array:
            m0, p0 = jnp.asarray(m0, m.dtype), jnp.asarray(p0, m.dtype)
            return 0.5 * (p0 * (s**2 + (m - m0) ** 2) - 1.0 - jnp.log(p0 * s**2))

        return tree.total(jax.tree.map(term, self.mean, self.std, other.mean, other.prec))

    @double_precision
    def natural(self) -> Natural:
        """(prec * mean, -prec / 2), each a pytree; see `geometry.natural`."""
        return Natural(
            *_leafwise(coordinates.natural_from_mean_prec_diagonal, self.mean, self.prec)
        )

    @classmethod
    @double_precision
    def from_natural(cls, natural: Natural, like: PyTree | None = None) -> DiagonalGaussian:
        """From natural parameters; `like` is for callers of any family, and not used here."""
        mean, prec = _leafwise(
            lambda *pair: coordinates.mean_prec_from_natural_diagonal(Natural(*pair)), *natural
        )
        return cls(mean, jax.tree.map(lambda p: 1.0 / jnp.sqrt(p), prec))

    @double_precision
    def expectation(self) -> Expectation:
        """(mean, std^2 + mean^2), each a pytree; see `geometry.natural`."""
        var = jax.tree.map(lambda s: s**2, self.std)
        return Expectation(
            *_leafwise(coordinates.expectation_from_mean_cov_diagonal, self.mean, var)
        )

    @classmethod
    @double_precision
    def from_expectation(
        cls, expectation: Expectation, like: PyTree | None = None
    ) -> DiagonalGaussian:
        """From expectation parameters."""
        mean, var = _leafwise(
            lambda *pair: coordinates.mean_cov_from_expectation_diagonal(Expectation(*pair)),
            *expectation,
        )
        return cls(mean, jax.tree.map(jnp.sqrt, var))

    @double_precision
    def unconstrained(self) -> dict[str, PyTree]:
        """Unconstrained parameters: "mean" and "log_std", each a pytree."""
        return {"mean": self.mean, "log_std": jax.tree.map(jnp.log, self.std)}

    @classmethod
    @double_precision
    def from_unconstrained(
        cls, values: dict[str, PyTree], like: PyTree | None = None
    ) -> DiagonalGaussian:
        """From unconstrained parameters."""
        return cls(values["mean"], jax.tree.map(jnp.exp, values["log_std"]))


def _leafwise(
    function: Callable[..., tuple[Array, Array]], first: PyTree, second: PyTree
) -> tuple[PyTree, PyTree]:
    """The two results of `function` at each pair of leaves, as two pytrees."""
    pairs = list(map(function, jax.tree.leaves(first), jax.tree.leaves(second)))
    structure = jax.tree.structure(first)
    one, two = ([pair[i] for pair in pairs] for i in (0, 1))
    return jax.tree.unflatten(structure, one), jax.tree.unflatten(structure, two)
