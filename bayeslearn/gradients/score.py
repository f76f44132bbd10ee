r"""Score-function gradients of the lower bound: log-densities of the model, and no gradient of it.

    grad_zeta ELBO = E_q[score (h - a)],   score = grad_zeta log q(theta | zeta)

with h = log p(D, theta) - log q(theta) (survey section 6; Ranganath et al. 2014). In the frame of a
Gaussian (`geometry.frame`), theta = mean + C eps, the scores are closed forms of the noise, for the
step C^-1 dmean and for A in dC = C A:

    mean     eps                                   `Score.mean`
    scale    eps eps^T - I (diagonal: eps^2 - 1)   `Score.scale`

They are then transformed to unconstrained parameters, zeta = {"mean", "scale"}: "scale" is log std
for a diagonal, and for a block the Cholesky factor with the logarithm of its diagonal,

    grad_mean = C^-T mean,   grad_C = lower triangle of C^-T scale     `to_zeta`

Baselines a, which are unbiased since E[score] = 0:

    leave-one-out    the mean of the other draws' h
    control-variate  a* = sum Cov(score h, score) / sum Var(score), the sums over the coordinates
                     of a factor, from other draws than those it is applied to. As the mean of the
                     score is known to be 0 it is a weighted mean: sum |score|^2 h / sum |score|^2

With `rao_blackwell` the h of factor i (a leaf of a diagonal q, a block) has only the terms that
depend on theta_i, log p(D | theta) + log p(theta_i) - log q_i(theta_i). In a network the likelihood
depends on every weight, so that only the prior and entropy of other factors are dropped. The whole
h becomes constant as q approaches the posterior, and its noise vanishes; without those terms it
does not.

Differs from the survey: h is that of whole draws (errata 59), and the formulas that it omits
(errata 55) are written here.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.data.rows import Batch
from bayeslearn.geometry.frame import BlockFrame, DiagonalFrame, Frame
from bayeslearn.gradients.whitened import leave_one_out
from bayeslearn.models.target import Target
from bayeslearn.numerics import LOG_2PI, to_cholesky
from bayeslearn.tree import Array, Groups, PyTree

BASELINES = ("leave-one-out", "control-variate", "none")
AVERAGED_STEPS = 100  # window of `averaged`; in a long run the last eighth of it


class Score(NamedTuple):
    """A gradient in the frame: C^T grad_mean, and mean[(eps eps^T - I) c]."""

    mean: PyTree
    scale: PyTree


class Evaluated(NamedTuple):
    """h of each draw (rows) and factor (columns; one if all have the same), and the lower bound."""

    h: Array
    elbo: Array
    nll: Array


def to_frame(zeta: dict[str, PyTree], groups: Groups | None) -> DiagonalFrame | BlockFrame:
    """The frame of q(theta | zeta); `groups` of leaves are its blocks, None for a diagonal."""
    if groups is None:
        std = jax.tree.map(jnp.exp, zeta["scale"])
        return DiagonalFrame(zeta["mean"], std, tree.total(zeta["scale"]))
    factors = tuple(map(exp_diagonal, zeta["scale"]))
    log_det = tree.total([jnp.diagonal(m) for m in zeta["scale"]])
    return BlockFrame(zeta["mean"], factors, log_det, groups)


def from_frame(frame: Frame) -> dict[str, PyTree]:
    """zeta of a frame; the factors of blocks must be lower triangular (`cholesky_frame`)."""
    if isinstance(frame, DiagonalFrame):
        return {"mean": frame.mean, "scale": jax.tree.map(jnp.log, frame.std)}
    assert isinstance(frame, BlockFrame)
    return {"mean": frame.mean, "scale": tuple(map(log_diagonal, frame.factors))}


def exp_diagonal(log_cholesky: Array) -> Array:
    """The Cholesky factor, from one with the logarithm of its diagonal."""
    return jnp.tril(log_cholesky, -1) + jnp.diag(jnp.exp(jnp.diagonal(log_cholesky)))


def log_diagonal(cholesky: Array) -> Array:
    """The Cholesky factor with the logarithm of its diagonal."""
    return jnp.tril(cholesky, -1) + jnp.diag(jnp.log(jnp.diagonal(cholesky)))


def cholesky_frame(frame: BlockFrame) -> BlockFrame:
    """The same Gaussian with Cholesky factors."""
    factors = tuple(map(to_cholesky, frame.factors))
    return BlockFrame(frame.mean, factors, frame.log_det, frame.groups)


def averaged(average: PyTree, zeta: PyTree, count: Array) -> PyTree:
    """The running average of the last zetas, which averages out the noise of single steps."""
    window = jnp.maximum(jnp.minimum(count, AVERAGED_STEPS), count / 8)

    def update(old: Array, new: Array) -> Array:
        return old + (1.0 / (1.0 + window)).astype(old.dtype) * (new - old)

    return jax.tree.map(update, average, zeta)


def to_zeta(frame: Frame, score: Score) -> dict[str, PyTree]:
    """The gradient in zeta from the one in the frame."""
    if isinstance(frame, DiagonalFrame):
        return {"mean": jax.tree.map(jnp.divide, score.mean, frame.std), "scale": score.scale}
    assert isinstance(frame, BlockFrame)
    solved = [
        jax.scipy.linalg.solve_triangular(c, jnp.column_stack([g, m]), lower=True, trans=1)
        for c, g, m in zip(frame.factors, score.mean, score.scale, strict=True)
    ]
    scale = []
    for c, both in zip(frame.factors, solved, strict=True):
        lower = jnp.tril(both[:, 1:])
        scale.append(jnp.tril(lower, -1) + jnp.diag(jnp.diagonal(lower) * jnp.diagonal(c)))
    return {"mean": frame.join(tuple(both[:, 0] for both in solved)), "scale": tuple(scale)}


def evaluate(
    target: Target, frame: Frame, batch: Batch | None, noise: PyTree, rao_blackwell: bool
) -> Evaluated:
    """The log-densities of model and q at each draw."""

    def one(e: PyTree) -> tuple[Array, Array]:
        params = frame.draw(e)
        terms = jax.tree.leaves(target.log_prior_terms(params))
        log_prior = [tree.total([terms[i] for i in group]) for group in frame.factor_groups]
        own = jnp.stack(log_prior) - log_density_terms(frame, e)
        return target.scaled_log_likelihood(params, batch), own

    log_likelihood, own = jax.vmap(one)(noise)
    total = log_likelihood + jnp.sum(own, axis=1)
    h = log_likelihood[:, None] + own if rao_blackwell else total[:, None]
    return Evaluated(h, jnp.mean(total), -jnp.mean(log_likelihood))


def log_density_terms(frame: Frame, noise: PyTree) -> Array:
    """log q_i of each factor's draw."""
    if isinstance(frame, BlockFrame):
        log_dets = [jnp.sum(jnp.log(jnp.diagonal(c))) for c in frame.factors]
    else:
        assert isinstance(frame, DiagonalFrame)
        log_dets = [jnp.sum(jnp.log(s), dtype=jnp.float64) for s in jax.tree.leaves(frame.std)]
    squares = [jnp.sum(e**2, dtype=jnp.float64) for e in jax.tree.leaves(noise)]
    sizes = [e.size for e in jax.tree.leaves(noise)]
    return jnp.stack(
        [-0.5 * (r + n * LOG_2PI) - d for r, n, d in zip(squares, sizes, log_dets, strict=True)]
    )


def squared_scores(frame: Frame, noise: PyTree) -> Array:
    """|score|^2 of each draw (rows) and factor (columns), in the frame."""

    def factor(e: Array) -> Array:
        flat = e.reshape(len(e), -1).astype(jnp.float64)
        squares = jnp.sum(flat**2, axis=1)
        found = squares + jnp.sum((flat**2 - 1.0) ** 2, axis=1)
        if isinstance(frame, BlockFrame):  # and the products e_i e_j, i > j
            found = found + 0.5 * (squares**2 - jnp.sum(flat**4, axis=1))
        return found

    return jnp.stack([factor(e) for e in jax.tree.leaves(noise)], axis=1)


def control_variate(h: Array, squares: Array) -> Array:
    """a* = sum_s |score_s|^2 h_s / sum_s |score_s|^2 for each column of `squares`."""
    return jnp.sum(squares * h, axis=0) / jnp.sum(squares, axis=0)


def centred(h: Array, squares: Array, baseline: str) -> Array:
    """h - a for each draw and factor."""
    if baseline == "leave-one-out":
        return jax.vmap(leave_one_out, 1, 1)(h)
    if baseline == "control-variate":  # a* of each half of the draws serves the other half
        half = len(h) // 2
        first = h[:half] - control_variate(h[half:], squares[half:])
        second = h[half:] - control_variate(h[:half], squares[:half])
        return jnp.concatenate([first, second])
    return h


def average(frame: Frame, noise: PyTree, weight: Array) -> Score:
    """mean[score c], c the columns of `weight`, one for each factor (or one for all)."""
    leaves, treedef = jax.tree.flatten(noise)
    columns = jnp.broadcast_to(weight, (len(weight), len(leaves))).T
    means, scales = [], []
    for e, c in zip(leaves, columns, strict=True):
        c = c.astype(e.dtype) / len(c)
        means.append(jnp.tensordot(c, e, axes=1))
        if isinstance(frame, BlockFrame):
            scales.append((e.T * c) @ e - jnp.sum(c) * jnp.eye(e.shape[1], dtype=e.dtype))
        else:
            scales.append(jnp.tensordot(c, e**2 - 1.0, axes=1))
    return Score(jax.tree.unflatten(treedef, means), jax.tree.unflatten(treedef, scales))


def natural(gradient: Score) -> Score:
    """F^-1 gradient in the frame: as lower triangular A for a block.

    The Fisher matrix is diagonal there: 1 for the mean and below the diagonal of A, 2 on it.
    """
    if not isinstance(gradient.scale, tuple):
        return Score(gradient.mean, jax.tree.map(lambda m: 0.5 * m, gradient.scale))
    halved = tuple(jnp.tril(m, -1) + 0.5 * jnp.diag(jnp.diagonal(m)) for m in gradient.scale)
    return Score(gradient.mean, halved)


def step_to_zeta(frame: Frame, step: Score) -> dict[str, PyTree]:
    """A step in the frame as one in zeta: C s, and C A with the diagonal of A (of logarithms)."""
    if isinstance(frame, DiagonalFrame):
        return {"mean": jax.tree.map(jnp.multiply, frame.std, step.mean), "scale": step.scale}
    assert isinstance(frame, BlockFrame)
    mean = frame.join(tuple(c @ s for c, s in zip(frame.factors, step.mean, strict=True)))
    scale = tuple(
        jnp.tril(c @ a, -1) + jnp.diag(jnp.diagonal(a))
        for c, a in zip(frame.factors, step.scale, strict=True)
    )
    return {"mean": mean, "scale": scale}
