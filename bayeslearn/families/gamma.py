r"""Independent Gamma variables: positive weights, in an exponential family that is not Gaussian.

    q(t) = rate^shape / Gamma(shape) t^(shape - 1) exp(-rate t),   t > 0
         = exp(l1 log t + l2 t - A(l)),   with base measure 1
    natural       l1 = shape - 1,   l2 = -rate                      `natural()`
    sufficient    (log t, t)                                        `sufficient(params)`
    A(l)        = log Gamma(l1 + 1) - (l1 + 1) log(-l2)             `log_partition()`
    expectation   m1 = psi(shape) - log rate,   m2 = shape / rate   `expectation()`, m = dA/dl
    Fisher(l)   = d^2 A / dl^2 = [[psi'(shape), 1 / rate], [1 / rate, shape / rate^2]]

per coordinate, psi the digamma function. A prior in the same family has natural parameters too,
and a Poisson likelihood adds (sum of counts, -exposure) to them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, gammaln, polygamma

from bayeslearn import tree
from bayeslearn.errors import Shown, refuse
from bayeslearn.families.base import Density
from bayeslearn.geometry.natural import Expectation, Natural
from bayeslearn.precision import double_precision
from bayeslearn.tree import Array, PyTree


class Gamma(Density):
    """q(t) = prod Gamma(t; shape, rate); both are pytrees like the parameters."""

    shape: PyTree
    rate: PyTree

    def __check_init__(self) -> None:
        layout = [jnp.shape(leaf) for leaf in jax.tree.leaves(self.shape)]
        if layout != [jnp.shape(leaf) for leaf in jax.tree.leaves(self.rate)]:
            refuse("rate", Shown("another"), "have the structure and shapes of `shape`")
        for name in ("shape", "rate"):
            for leaf in jax.tree.leaves(getattr(self, name)):
                if not isinstance(leaf, jax.core.Tracer) and not np.all(np.asarray(leaf) > 0):
                    refuse(name, leaf, "be positive")

    @property
    @double_precision
    def mean(self) -> PyTree:
        """shape / rate."""
        return jax.tree.map(lambda a, b: a / b, self.shape, self.rate)

    @property
    @double_precision
    def std(self) -> PyTree:
        """sqrt(shape) / rate."""
        return jax.tree.map(lambda a, b: jnp.sqrt(a) / b, self.shape, self.rate)

    @double_precision
    def sample(self, key: Array, num: int) -> PyTree:
        """`num` draws along a leading axis, differentiable in shape and rate."""
        shape = tree.ravel(self.shape)
        unit = jax.random.gamma(key, shape, (num, *shape.shape), shape.dtype)
        unravel = tree.unraveler(self.shape)
        return jax.tree.map(lambda u, b: u / b, jax.vmap(unravel)(unit), self.rate)

    @double_precision
    def log_prob(self, params: PyTree) -> Array:
        """Log-density at one set of parameters."""

        def term(t: Array, a: Array, b: Array) -> Array:
            inside = jnp.where(t > 0, t, 1.0)  # so that the gradient outside is not NaN
            value = (a - 1.0) * jnp.log(inside) - b * inside - _log_partition(a, b)
            return jnp.where(t > 0, value, -jnp.inf)

        return tree.total(jax.tree.map(term, params, self.shape, self.rate))

    @double_precision
    def entropy(self) -> Array:
        """Differential entropy in nats."""

        def term(a: Array, b: Array) -> Array:
            return a - jnp.log(b) + gammaln(a) + (1.0 - a) * digamma(a)

        return tree.total(jax.tree.map(term, self.shape, self.rate))

    @double_precision
    def kl(self, other: Gamma) -> Array:
        """KL(self || other) = A(other) - A(self) - (other - self)^T m, in natural parameters."""
        if not isinstance(other, Gamma):
            refuse("other", Shown(f"a {type(other).__name__}"), "be a Gamma")

        def term(a: Array, b: Array, a0: Array, b0: Array) -> Array:
            bregman = _log_partition(a0, b0) - _log_partition(a, b)
            return bregman - (a0 - a) * (digamma(a) - jnp.log(b)) + (b0 - b) * a / b

        return tree.total(jax.tree.map(term, self.shape, self.rate, other.shape, other.rate))

    @double_precision
    def natural(self) -> Natural:
        """(shape - 1, -rate), each a pytree."""
        return Natural(
            jax.tree.map(lambda a: a - 1.0, self.shape), jax.tree.map(lambda b: -b, self.rate)
        )

    @classmethod
    @double_precision
    def from_natural(cls, natural: Natural) -> Gamma:
        """From natural parameters."""
        first, second = natural
        return cls(jax.tree.map(lambda x: x + 1.0, first), jax.tree.map(lambda x: -x, second))

    @double_precision
    def expectation(self) -> Expectation:
        """(E log t, E t), each a pytree."""
        log_mean = jax.tree.map(lambda a, b: digamma(a) - jnp.log(b), self.shape, self.rate)
        return Expectation(log_mean, self.mean)

    @double_precision
    def sufficient(self, params: PyTree) -> Expectation:
        """(log t, t): the statistics whose means are `expectation()`."""
        return Expectation(jax.tree.map(jnp.log, params), params)

    @double_precision
    def log_partition(self) -> Array:
        """A(l)."""
        return tree.total(jax.tree.map(_log_partition, self.shape, self.rate))

    @double_precision
    def fisher(self) -> PyTree:
        """Fisher matrix in the natural parameters of each coordinate: leaves (..., 2, 2)."""

        def matrix(a: Array, b: Array) -> Array:
            a, b = jnp.asarray(a), jnp.asarray(b)
            entries = jnp.stack([polygamma(1, a), 1.0 / b, 1.0 / b, a / b**2], axis=-1)
            return entries.reshape(*a.shape, 2, 2)

        return jax.tree.map(matrix, self.shape, self.rate)


def _log_partition(a: Array, b: Array) -> Array:
    return gammaln(a) - a * jnp.log(b)
