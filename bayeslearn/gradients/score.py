r"""Score-function gradients of the lower bound: log-densities of the model, and no gradient of it.

    grad_zeta ELBO = E_q[score (h - a)],   score = grad_zeta log q(theta | zeta)

with h = log p(D, theta) - log q(theta) (survey section 6; Ranganath et al. 2014). A Gaussian is
seen from its frame (`geometry.frame`), theta = mean + C eps, where the scores are closed forms of
the noise, for the step C^-1 dmean and for A in dC = C A:

    mean     eps                                   `mean`
    spread   eps eps^T - I (diagonal: eps^2 - 1)   `spread`

and then carried to the coordinates free to move, zeta = {"mean", "spread"}: `spread` is log std
for a diagonal, and the Cholesky factor with the logarithms of its diagonal for a block,

    grad_mean = C^-T mean,   grad_C = lower triangle of C^-T spread     `to_zeta`

What a may be without a bias, since E[score] = 0:

    leave-one-out    the mean of the other draws' h
    control-variate  a* = sum Cov(score h, score) / sum Var(score), the sums over the coordinates
                     of a factor, from other draws than those it is applied to. As the mean of the
                     score is known to be 0 it is a weighted mean: sum |score|^2 h / sum |score|^2

and what h may be: with `rao_blackwell` the h of factor i (a leaf of a diagonal q, a block) keeps
the terms that hold theta_i alone, log p(D | theta) + log p(theta_i) - log q_i(theta_i). In a
network the likelihood holds every weight, so that only other factors' prior and entropy go, and
with them what makes the whole h constant, and its noise nothing, as q approaches the posterior.

Differs from the survey: the h is whole draws' (errata 59), and the formulas that it leaves out
(errata 55) are written here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.data.rows import Batch
from bayeslearn.geometry.frame import BlockFrame, DiagonalFrame
from bayeslearn.gradients.whitened import leave_one_out
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

BASELINES = ("leave-one-out", "control-variate", "none")
LOG_2PI = 1.8378770664093453
AVERAGED = 100  # steps over which `averaged` averages; in a long run the last eighth of it


class Score(NamedTuple):
    """A gradient in the frame: C^T grad_mean, and mean[(eps eps^T - I) c]."""

    mean: PyTree
    spread: PyTree


class Evaluated(NamedTuple):
    """h of each draw for each factor (one column if they share it), and the bound's parts."""

    h: Array
    elbo: Array
    nll: Array


def to_frame(zeta: dict[str, PyTree], groups: Any) -> Any:
    """The frame of q(theta | zeta); `groups` of leaves are its blocks, None for a diagonal."""
    if groups is None:
        std = jax.tree.map(jnp.exp, zeta["spread"])
        return DiagonalFrame(zeta["mean"], std, tree.total(zeta["spread"]))
    factors = tuple(map(exp_diagonal, zeta["spread"]))
    log_det = tree.total([jnp.diagonal(m) for m in zeta["spread"]])
    return BlockFrame(zeta["mean"], factors, log_det, groups)


def from_frame(frame: Any) -> dict[str, PyTree]:
    """zeta of a frame; the factors of blocks must be lower triangular (`to_cholesky`)."""
    if isinstance(frame, DiagonalFrame):
        return {"mean": frame.mean, "spread": jax.tree.map(jnp.log, frame.std)}
    return {"mean": frame.mean, "spread": tuple(map(log_diagonal, frame.factors))}


def exp_diagonal(log_cholesky: Array) -> Array:
    """The Cholesky factor from one with the logarithms of its diagonal."""
    return jnp.tril(log_cholesky, -1) + jnp.diag(jnp.exp(jnp.diagonal(log_cholesky)))


def log_diagonal(cholesky: Array) -> Array:
    return jnp.tril(cholesky, -1) + jnp.diag(jnp.log(jnp.diagonal(cholesky)))


def to_cholesky(factor: Array) -> Array:
    """The Cholesky factor of C C^T, from C^T = Q R without forming the product."""
    upper = jnp.linalg.qr(factor.T, mode="r")
    return upper.T * jnp.where(jnp.diagonal(upper) < 0, -1.0, 1.0)


def cholesky_frame(frame: BlockFrame) -> BlockFrame:
    """The same Gaussian with Cholesky factors."""
    factors = tuple(map(to_cholesky, frame.factors))
    return BlockFrame(frame.mean, factors, frame.log_det, frame.groups)


def averaged(average: PyTree, zeta: PyTree, count: Array) -> PyTree:
    """The running average of the last zetas, free of the noise of single steps."""
    window = jnp.maximum(jnp.minimum(count, AVERAGED), count / 8)

    def newer(old: Array, new: Array) -> Array:
        return old + (1.0 / (1.0 + window)).astype(old.dtype) * (new - old)

    return jax.tree.map(newer, average, zeta)


def to_zeta(frame: Any, score: Score) -> dict[str, PyTree]:
    """The gradient in zeta from the one in the frame."""
    if isinstance(frame, DiagonalFrame):
        return {"mean": jax.tree.map(jnp.divide, score.mean, frame.std), "spread": score.spread}
    solved = [
        jax.scipy.linalg.solve_triangular(c, jnp.column_stack([g, m]), lower=True, trans=1)
        for c, g, m in zip(frame.factors, score.mean, score.spread, strict=True)
    ]
    spread = []
    for c, both in zip(frame.factors, solved, strict=True):
        lower = jnp.tril(both[:, 1:])
        spread.append(jnp.tril(lower, -1) + jnp.diag(jnp.diagonal(lower) * jnp.diagonal(c)))
    return {"mean": frame.join(tuple(both[:, 0] for both in solved)), "spread": tuple(spread)}


def evaluate(
    target: Target, frame: Any, batch: Batch | None, noise: PyTree, rao_blackwell: bool
) -> Evaluated:
    """The model's log-density at each draw: all that is asked of it."""

    def one(e: PyTree) -> tuple[Array, Array]:
        params = frame.draw(e)
        terms = jax.tree.leaves(target.log_prior_terms(params))
        log_prior = [tree.total([terms[i] for i in group]) for group in factors_of(frame)]
        own = jnp.stack(log_prior) - log_density_terms(frame, e)
        return target.scaled_log_likelihood(params, batch), own

    log_likelihood, own = jax.vmap(one)(noise)
    total = log_likelihood + jnp.sum(own, axis=1)
    h = log_likelihood[:, None] + own if rao_blackwell else total[:, None]
    return Evaluated(h, jnp.mean(total), -jnp.mean(log_likelihood))


def factors_of(frame: Any) -> tuple[tuple[int, ...], ...]:
    """Which leaves a factor of q holds: each its own, or those of a block."""
    if isinstance(frame, BlockFrame):
        return frame.groups
    return tuple((i,) for i in range(len(jax.tree.leaves(frame.mean))))


def log_density_terms(frame: Any, noise: PyTree) -> Array:
    """log q_i of each factor's draw."""
    if isinstance(frame, BlockFrame):
        log_dets = [jnp.sum(jnp.log(jnp.diagonal(c))) for c in frame.factors]
    else:
        log_dets = [jnp.sum(jnp.log(s), dtype=jnp.float64) for s in jax.tree.leaves(frame.std)]
    squares = [jnp.sum(e**2, dtype=jnp.float64) for e in jax.tree.leaves(noise)]
    sizes = [e.size for e in jax.tree.leaves(noise)]
    return jnp.stack(
        [-0.5 * (r + n * LOG_2PI) - d for r, n, d in zip(squares, sizes, log_dets, strict=True)]
    )


def squared_scores(frame: Any, noise: PyTree) -> Array:
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


def average(frame: Any, noise: PyTree, weight: Array) -> Score:
    """mean[score c], c the columns of `weight`, one for each factor (or one for all)."""
    leaves, treedef = jax.tree.flatten(noise)
    columns = jnp.broadcast_to(weight, (len(weight), len(leaves))).T
    means, spreads = [], []
    for e, c in zip(leaves, columns, strict=True):
        c = c.astype(e.dtype) / len(c)
        means.append(jnp.tensordot(c, e, axes=1))
        if isinstance(frame, BlockFrame):
            spreads.append((e.T * c) @ e - jnp.sum(c) * jnp.eye(e.shape[1], dtype=e.dtype))
        else:
            spreads.append(jnp.tensordot(c, e**2 - 1.0, axes=1))
    return Score(jax.tree.unflatten(treedef, means), jax.tree.unflatten(treedef, spreads))


def natural(gradient: Score) -> Score:
    """F^-1 gradient in the frame: as lower triangular A for a block.

    There the Fisher matrix is diagonal: 1 for the mean and below A's diagonal, 2 on it.
    """
    if not isinstance(gradient.spread, tuple):
        return Score(gradient.mean, jax.tree.map(lambda m: 0.5 * m, gradient.spread))
    halved = tuple(jnp.tril(m, -1) + 0.5 * jnp.diag(jnp.diagonal(m)) for m in gradient.spread)
    return Score(gradient.mean, halved)


def step_to_zeta(frame: Any, step: Score) -> dict[str, PyTree]:
    """A step in the frame as one in zeta: C s, and C A with A's own diagonal (of logarithms)."""
    if isinstance(frame, DiagonalFrame):
        return {"mean": jax.tree.map(jnp.multiply, frame.std, step.mean), "spread": step.spread}
    mean = frame.join(tuple(c @ s for c, s in zip(frame.factors, step.mean, strict=True)))
    spread = tuple(
        jnp.tril(c @ a, -1) + jnp.diag(jnp.diagonal(a))
        for c, a in zip(frame.factors, step.spread, strict=True)
    )
    return {"mean": mean, "spread": spread}
