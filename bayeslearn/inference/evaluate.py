"""Evaluations: the lower bound by draws of q, and the log-likelihood of held-out rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.algorithms.base import Algorithm
from bayeslearn.data.batches import sample_rows
from bayeslearn.data.rows import Batch
from bayeslearn.families import Point
from bayeslearn.families.base import Family, Gaussian
from bayeslearn.models.protocols import WithDensity
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree

EVAL_DRAWS = 64
EVAL_BATCH = 16  # of those at a time
EVAL_ROWS = 8192
FINAL_EVALUATIONS = 4  # of EVAL_DRAWS each, for the lower bound that is reported


@jax.jit
def evaluate(
    algorithm: Algorithm, target: Target, state: PyTree, key: Array, validation: Batch | None
) -> dict[str, Array]:
    """The lower bound (or, for a point, the log-joint) and its parts, by name.

    "objective" is what decides which iterate is best, and "error" the Monte-Carlo error of the
    lower bound. With validation rows the objective is their mean log-likelihood, and "scores" has
    that of each row.
    """
    target = algorithm.bind_state(target, state)
    q = algorithm.approximation(target, state)
    if (own := algorithm.objective(key, target, state)) is not None:
        metrics = own
    elif not algorithm.capabilities.has_lower_bound:
        log_likelihood = target.scaled_log_likelihood(q.mean)
        log_joint = log_likelihood + target.log_prior(q.mean) - target.divergence()
        metrics = {"log_joint": log_joint, "nll": -log_likelihood, "objective": log_joint}
        metrics["error"] = jnp.zeros((), jnp.float64)
    else:
        metrics = lower_bound(target, q, key, EVAL_DRAWS)
        metrics["objective"] = metrics["elbo"]
    if validation is not None:
        key_held_out = jax.random.fold_in(key, 2)  # other draws than those of the lower bound
        scores = held_out_scores(algorithm, target, q, key_held_out, validation)
        metrics["scores"] = scores
        metrics["validation"] = metrics["objective"] = weighted_mean(scores, validation.weight)
    return metrics


def held_out_scores(
    algorithm: Algorithm, target: Target, q: Family, key: Array, rows: Batch
) -> Array:
    """Log predictive density of each row."""
    draws = q.sample(key, 1 if isinstance(q, Point) else EVAL_DRAWS)
    predictive = algorithm.predictive_target(target, q).to_predict()
    unweighted = rows._replace(weight=None)
    terms = jax.lax.map(lambda w: predictive.log_likelihood(w, unweighted), draws)
    return jax.nn.logsumexp(terms, axis=0) - jnp.log(len(terms))


def weighted_mean(values: Array, weight: Array | None) -> Array:
    """Mean over rows, each counted as often as its weight says."""
    return jnp.mean(values) if weight is None else jnp.sum(weight * values) / jnp.sum(weight)


def lower_bound(target: Target, q: Family, key: Array, num_draws: int) -> dict[str, Array]:
    """elbo = -nll - kl on all rows of the target from draws of q, and its Monte-Carlo error.

    The elbo is the mean of h = log p(D, w) - log q(w), which does not vary at all where q is the
    posterior; kl is exact for Gaussians, and nll the remainder. A part of the model that has a
    posterior of its own adds its divergence to kl.
    """
    if isinstance(q, Gaussian):
        noise = tree.normal_like(key, q.mean, num_draws)
        draws = jax.vmap(q.transform)(noise)
        squares = jax.vmap(lambda e: tree.total(jax.tree.map(jnp.square, e)))(noise)
        log_q = 0.5 * (tree.size(q.mean) - squares) - q.entropy()
    else:
        assert isinstance(q, WithDensity)
        draws = q.sample(key, num_draws)
        log_q = jax.vmap(q.log_prob)(draws)
    log_likelihood = jax.lax.map(
        target.scaled_log_likelihood, draws, batch_size=min(num_draws, EVAL_BATCH)
    )
    divergence = log_q - jax.vmap(target.log_prior)(draws)
    h = log_likelihood - divergence
    if isinstance(q, Gaussian) and target.prior is not None and target.prior.is_gaussian:
        kl = q.kl(target.prior)
    else:
        kl = jnp.mean(divergence)
    kl = kl + target.divergence()
    elbo = jnp.mean(h) - target.divergence()
    error = jnp.std(h) / jnp.sqrt(num_draws)
    return {"elbo": elbo, "nll": -elbo - kl, "kl": kl, "error": error}


def evaluation_rows(target: Target) -> Batch | None:
    """The rows on which the lower bound is measured: all, or an even sample of them."""
    return None if target.data is None else sample_rows(target.data, EVAL_ROWS)


def final_lower_bound(
    algorithm: Algorithm, target: Target, state: PyTree, key: Array, validation: Batch | None
) -> float:
    """The lower bound from draws that had no part in any choice."""
    target = target.with_data(evaluation_rows(target))
    keys = jax.random.split(key, FINAL_EVALUATIONS)
    bounds = [evaluate(algorithm, target, state, key, validation)["elbo"] for key in keys]
    return float(np.mean(bounds))
