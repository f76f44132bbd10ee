"""Gradients of the lower bound in a frame, by score function, reparametrisation or curvature.

With theta = mean + C eps, h = log p(D, theta) - log q(theta), g = C^T grad_mean ELBO and
G = C^T grad_cov ELBO C:

    score      g = mean[eps c],  G = mean[(eps eps^T - I) c] / 2   c: centred h
    reparam    g = mean[w],      G = sym mean[eps w^T] / 2         w = C^T grad log p + eps
    curvature  g = mean[w],      G = (I - C^T H C) / 2             H: Hessian of -log p

(Bonnet and Price; the second line is Stein's form of Price.) c is h minus the mean of the other
draws' h (leave-one-out), which is unbiased, sums to zero, and vanishes, like w, as q approaches
a Gaussian posterior. `form="log-likelihood"` replaces h by log p(D | theta) and adds prior and
entropy in closed form, which needs a Gaussian prior.

Differs from the survey: h has no expectation in it (errata 105); with a baseline the h form has
the lower variance (errata 108).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.data.rows import Batch
from bayeslearn.geometry.frame import BlockFrame, Frame, Symmetric
from bayeslearn.gradients import curvature
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree


class Whitened(NamedTuple):
    """Gradients in the frame, and estimates of the lower bound from the same draws."""

    mean: PyTree  # g
    cov: Symmetric  # G
    elbo: Array
    nll: Array


def leave_one_out(values: Array) -> Array:
    """Each value minus the mean of the others."""
    num = len(values)
    return values - (jnp.sum(values) - values) / (num - 1)


def estimate(
    key: Array,
    target: Target,
    frame: Frame,
    batch: Batch | None,
    *,
    gradient: str,
    num_draws: int,
    num_curvatures: int | None = None,
    form: str = "h",
    baseline: str = "leave-one-out",
) -> Whitened:
    """Gradients by the estimator `gradient`; curvature at `num_curvatures` of the draws."""
    if gradient == "score":
        return score(target, frame, batch, frame.noise(key, num_draws), form, baseline)
    if gradient == "reparam":
        return reparam(target, frame, batch, frame.noise(key, num_draws))
    key_noise, key_curvature = jax.random.split(key)
    noise = frame.noise(key_noise, num_draws)
    num = num_curvatures or num_draws
    return by_curvature(key_curvature, target, frame, batch, noise, gradient, num)


def log_density(frame: Frame, noise: PyTree) -> Array:
    """log q of the draw that `noise` gives."""
    squares = tree.total(jax.tree.map(lambda e: e**2, noise))
    size = tree.size(noise)
    return -0.5 * squares - frame.log_det - 0.5 * size * jnp.log(2 * jnp.pi)


def score(
    target: Target,
    frame: Frame,
    batch: Batch | None,
    noise: PyTree,
    form: str = "h",
    baseline: str = "leave-one-out",
) -> Whitened:
    """By the score function: no gradient of the model."""

    def one(e: PyTree) -> tuple[Array, Array]:
        params = frame.draw(e)
        log_likelihood = target.scaled_log_likelihood(params, batch)
        return log_likelihood, log_likelihood + target.log_prior(params) - log_density(frame, e)

    log_likelihood, h = jax.vmap(one)(noise)
    value = h if form == "h" else log_likelihood
    weight = leave_one_out(value) if baseline == "leave-one-out" else value
    weighted = jax.tree.map(lambda e: e * _column(weight, e), noise)
    mean = jax.tree.map(lambda e: jnp.mean(e, axis=0), weighted)
    cov = frame.outer(noise, weighted)
    # mean[(eps eps^T - I) c]: the identity's part is zero when c sums to zero
    cov = cov.shifted(-jnp.mean(weight)).scaled(0.5)
    if form != "h":
        mean, cov = _add_prior_and_entropy(target, frame, mean, cov)
    return Whitened(mean, cov, jnp.mean(h), -jnp.mean(log_likelihood))


def reparam(target: Target, frame: Frame, batch: Batch | None, noise: PyTree) -> Whitened:
    """By reparametrisation: one gradient of the model per draw."""
    pulled, elbo, nll = _pulled_gradients(target, frame, batch, noise)
    mean = jax.tree.map(lambda w: jnp.mean(w, axis=0), pulled)
    return Whitened(mean, frame.outer(noise, pulled).scaled(0.5), elbo, nll)


def by_curvature(
    key: Array,
    target: Target,
    frame: Frame,
    batch: Batch | None,
    noise: PyTree,
    kind: str,
    num: int,
) -> Whitened:
    """By gradients of the model, and Hessians or Gauss-Newton matrices at the first `num` draws."""
    pulled, elbo, nll = _pulled_gradients(target, frame, batch, noise)
    mean = jax.tree.map(lambda w: jnp.mean(w, axis=0), pulled)

    def of(key: Array, e: PyTree) -> PyTree:
        params = frame.draw(e)
        if isinstance(frame, BlockFrame):
            return curvature.blocks(key, target, params, batch, frame.groups, kind)
        return curvature.diagonal(key, target, params, batch, kind)

    # Summed over draws first, then transformed once: C is the same for all draws.
    each = jax.random.split(key, num), jax.tree.map(lambda e: e[:num], noise)
    shapes = jax.eval_shape(of, *jax.tree.map(lambda part: part[0], each))
    sums, _ = jax.lax.scan(
        lambda sums, one: (jax.tree.map(jnp.add, sums, of(*one)), None),
        jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes),
        each,
    )
    hessian = frame.quadratic(jax.tree.map(lambda m: m / num, sums))
    cov = frame.spectrum(hessian).scaled(-0.5).shifted(0.5)
    return Whitened(mean, cov, elbo, nll)


def _pulled_gradients(
    target: Target, frame: Frame, batch: Batch | None, noise: PyTree
) -> tuple[PyTree, Array, Array]:
    """w = C^T grad log p(D, theta) + eps of each draw, the lower bound and the nll."""

    def one(e: PyTree) -> tuple[PyTree, Array, Array]:
        params = frame.draw(e)

        def log_joint(p: PyTree) -> tuple[Array, Array]:
            log_likelihood = target.scaled_log_likelihood(p, batch)
            return log_likelihood + target.log_prior(p), log_likelihood

        (value, log_likelihood), gradient = jax.value_and_grad(log_joint, has_aux=True)(params)
        pulled = jax.tree.map(jnp.add, frame.pull(gradient), e)
        return pulled, value - log_density(frame, e), log_likelihood

    pulled, elbo, log_likelihood = jax.vmap(one)(noise)
    return pulled, jnp.mean(elbo), -jnp.mean(log_likelihood)


def _add_prior_and_entropy(
    target: Target, frame: Frame, mean: PyTree, cov: Symmetric
) -> tuple[PyTree, Symmetric]:
    """grad_mean: -P0 (mean - mean0); grad_cov: (P - P0) / 2."""
    assert target.prior is not None
    gradient = jax.grad(target.log_prior)(frame.mean)
    mean = jax.tree.map(jnp.add, mean, frame.pull(gradient))
    prior: PyTree
    if isinstance(frame, BlockFrame):
        blocks = target.prior.prec_blocks(frame.mean, frame.groups)
        prior = frame.quadratic(blocks)
    else:
        prior = frame.dense(frame.quadratic(target.prior.broadcast(frame.mean)[1]))
    total = jax.tree.map(lambda c, p: c - 0.5 * p, frame.dense(cov), prior)
    return mean, frame.spectrum(total).shifted(0.5)


def _column(weight: Array, like: Array) -> Array:
    """One number per draw, to multiply `like` with."""
    return weight.reshape(-1, *[1] * (like.ndim - 1)).astype(like.dtype)
