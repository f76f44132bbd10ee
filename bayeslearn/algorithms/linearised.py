r"""Predictions of the network linearised at the mode, f(x, mode) + J(x) (w - mode).

`LinearisedNetwork` evaluates it at draws of the weights. Where J Sigma J^T has a closed form, draws
of the outputs need none: `gaussian_outputs` has N(f, J Sigma J^T) for every row, and the same
standard normal draws for all rows, whose mean and (where there are enough of them) covariance are
exactly 0 and 1. Moments of a predictive distribution that is linear in the outputs are then exact.
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.channels_last import channels_last
from bayeslearn.families import DiagonalGaussian
from bayeslearn.families.kronecker import KroneckerGaussian
from bayeslearn.gradients.kronecker import outputs_and_cov
from bayeslearn.models.networks.parts import NetworkWrapper
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

MAX_CELLS = 2**23  # outputs times outputs (or units of a layer) times rows, evaluated at once
MAX_ROWS = 512
MAX_OUTPUTS = 256  # with a covariance: as many backward passes for a row as there are outputs
JITTER = 1e-10  # of a covariance of outputs, beside its largest entry


class LinearisedNetwork(NetworkWrapper):
    """f(x, mode) + J(x) (w - mode): the network whose Gauss-Newton matrix is its Hessian."""

    mode: PyTree

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """Outputs of the linearisation for one example."""
        mode = tree.cast_like(self.mode, params)
        step = jax.tree.map(jnp.subtract, params, mode)
        value, change = jax.jvp(lambda p: self.network.apply(p, x, key), (mode,), (step,))
        return value + change


class GaussianOutputs(eqx.Module):
    """A network whose weights are standard normal noise, and whose rows are what it does to it."""

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        """Noise of the size of the outputs."""
        return jnp.zeros(num_outputs)

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """mean + factor noise."""
        return x["mean"] + x["factor"] @ params


def gaussian_outputs(
    target: Target, q: KroneckerGaussian, key: Array, num: int, x: PyTree
) -> tuple[Target, PyTree, PyTree]:
    """A target whose draws are noise of the linearised outputs; those draws, and its rows."""
    mean, factor = _by_chunks(target.with_data(None), q, x)
    key_noise, key_own = jax.random.split(key)
    own = DiagonalGaussian(q.mean["likelihood"], q.std["likelihood"])
    draws = {
        "network": standard_noise(key_noise, num, mean.shape[1]),
        "likelihood": own.sample(key_own, num) if jax.tree.leaves(own.mean) else own.mean,
    }
    bound = dataclasses.replace(
        target,
        network=GaussianOutputs(),
        dtypes=("float64",),
        frozen=None,
        frozen_prior=None,
        microbatch=None,
        by_layer=False,
    )
    return bound, draws, {"mean": mean, "factor": factor}


def standard_noise(key: Array, num: int, size: int) -> Array:
    """Standard normal draws (num, size) in pairs of opposite sign, of unit covariance if many."""
    half = jax.random.normal(key, (num // 2, size), jnp.float64)
    noise = jnp.concatenate([half, -half, jnp.zeros((num % 2, size), jnp.float64)])
    if num < 4 * size:
        return noise
    lower = jnp.linalg.cholesky(noise.T @ noise / (num - 1))
    return jax.scipy.linalg.solve_triangular(lower, noise.T, lower=True).T


def _by_chunks(target: Target, q: KroneckerGaussian, x: PyTree) -> tuple[Array, Array]:
    """Mean and factor of the outputs' covariance for all rows, a chunk of rows at a time."""
    rows = len(jax.tree.leaves(x)[0])
    num = jax.eval_shape(target.outputs, q.mean, x).shape[1]
    widest = max([num, *(right.shape[0] for right in q.right)])
    size = max(1, min(1 << (rows - 1).bit_length(), MAX_ROWS, MAX_CELLS // (num * widest)))
    parts = []
    for start in range(0, rows, size):
        chosen = jnp.minimum(jnp.arange(start, start + size), rows - 1)
        found = _mean_and_factor(target, q, jax.tree.map(lambda leaf, c=chosen: leaf[c], x))
        num_here = min(size, rows - start)
        parts.append(jax.tree.map(lambda a, n=num_here: a[:n], found))
    means, factors = zip(*parts, strict=True)
    return jnp.concatenate(means), jnp.concatenate(factors)


@jax.jit
@channels_last
def _mean_and_factor(target: Target, q: KroneckerGaussian, x: PyTree) -> tuple[Array, Array]:
    mean, cov = outputs_and_cov(target, q, x)
    largest = jnp.max(jnp.abs(cov), axis=(1, 2), keepdims=True)
    eye = jnp.eye(cov.shape[-1])
    return mean, jnp.linalg.cholesky(cov + (JITTER * largest + 1e-300) * eye)
