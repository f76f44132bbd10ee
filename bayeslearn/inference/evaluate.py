"""Evaluations: the lower bound by draws of q, and the log-likelihood of held-out rows."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.algorithms.base import Algorithm
from bayeslearn.channels_last import channels_last
from bayeslearn.data.rows import Batch
from bayeslearn.families import Point
from bayeslearn.families.base import Family, Gaussian
from bayeslearn.inference.evaluation_plan import EVAL_BATCH, EVAL_DRAWS, EvaluationPlan, pad_to
from bayeslearn.models.protocols import WithDensity
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree


@partial(jax.jit, static_argnames=("draws", "at_once"))
@channels_last
def evaluate(
    algorithm: Algorithm,
    target: Target,
    state: PyTree,
    key: Array,
    validation: Batch | None,
    *,
    draws: int = EVAL_DRAWS,
    at_once: int = EVAL_BATCH,
) -> dict[str, Array]:
    """The lower bound (or, for a point, the log-joint) and its parts, by name.

    "objective" is what decides which iterate is best, and "error" the Monte-Carlo error of the
    lower bound. With validation rows the objective is their mean log-likelihood, and "scores" has
    that of each row. With one draw `at_once` no more than one is kept in memory.
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
        metrics = lower_bound(target, q, key, draws, at_once, algorithm.kl_weight)
    metrics["bound"] = metrics.get("log_joint", metrics["objective"])
    if validation is not None:
        key_held_out = jax.random.fold_in(key, 2)  # other draws than those of the lower bound
        scores = held_out_scores(
            algorithm, target, q, key_held_out, validation, draws=draws, at_once=at_once
        )
        metrics["scores"] = scores
        metrics["validation"] = metrics["objective"] = weighted_mean(scores, validation.weight)
    return metrics


def held_out_scores(
    algorithm: Algorithm,
    target: Target,
    q: Family,
    key: Array,
    rows: Batch,
    *,
    draws: int = EVAL_DRAWS,
    at_once: int = EVAL_BATCH,
) -> Array:
    """Log predictive density of each row."""
    number, num_rows = 1 if isinstance(q, Point) else draws, len(rows.y)
    predictive = algorithm.predictive_target(target, q).to_predict()
    if at_once > 1:
        drawn = q.sample(key, number)
    else:
        drawn = jax.random.split(key, number)
        rows = pad_to(rows, target.microbatch or num_rows)
    unweighted = rows._replace(weight=None)

    def scores(draw: PyTree) -> Array:
        w = draw if at_once > 1 else jax.tree.map(lambda leaf: leaf[0], q.sample(draw, 1))
        return predictive.log_likelihood(w, unweighted)[:num_rows]

    terms = jax.lax.map(scores, drawn)
    return jax.nn.logsumexp(terms, axis=0) - jnp.log(len(terms))


def weighted_mean(values: Array, weight: Array | None) -> Array:
    """Mean over rows, each counted as often as its weight says."""
    return jnp.mean(values) if weight is None else jnp.sum(weight * values) / jnp.sum(weight)


def lower_bound(
    target: Target,
    q: Family,
    key: Array,
    num_draws: int,
    at_once: int = EVAL_BATCH,
    kl_weight: Array | float = 1.0,
) -> dict[str, Array]:
    """elbo = -nll - kl on all rows of the target from draws of q, and its Monte-Carlo error.

    The elbo is the mean of h = log p(D, w) - log q(w), which does not vary at all where q is the
    posterior; kl is exact for Gaussians, and nll the remainder. A part of the model that has a
    posterior of its own adds its divergence to kl. The objective, and the error, are those of a kl
    times `kl_weight`.
    """
    if at_once == 1:

        def terms(key: Array) -> tuple[Array, Array]:
            draws, log_q = draws_of(q, key, 1)
            draw = jax.tree.map(lambda leaf: leaf[0], draws)
            return target.scaled_log_likelihood(draw), log_q[0] - target.log_prior(draw)

        log_likelihood, divergence = jax.lax.map(terms, jax.random.split(key, num_draws))
    else:
        draws, log_q = draws_of(q, key, num_draws)
        log_likelihood = jax.lax.map(
            target.scaled_log_likelihood, draws, batch_size=min(num_draws, at_once)
        )
        divergence = log_q - jax.vmap(target.log_prior)(draws)
    h = log_likelihood - divergence
    if isinstance(q, Gaussian) and target.prior is not None and target.prior.is_gaussian:
        kl = q.kl(target.prior)
    else:
        kl = jnp.mean(divergence)
    kl = kl + target.divergence()
    elbo = jnp.mean(h) - target.divergence()
    excess = kl_weight - 1.0  # zero leaves every bit as it is
    error = jnp.std(h - excess * divergence) / jnp.sqrt(num_draws)
    objective = elbo - excess * (jnp.mean(divergence) + target.divergence())
    return {"elbo": elbo, "nll": -elbo - kl, "kl": kl, "error": error, "objective": objective}


def planned(
    plan: EvaluationPlan,
    algorithm: Algorithm,
    target: Target,
    state: PyTree,
    key: Array,
    validation: Batch | None,
) -> dict[str, Array]:
    """`evaluate`, with the draws of the plan."""
    sizes = {"draws": plan.draws, "at_once": plan.at_once}
    return evaluate(algorithm, target, state, key, validation, **sizes)


def draws_of(q: Family, key: Array, num_draws: int) -> tuple[PyTree, Array]:
    """Draws of q, and its log-density at them."""
    if isinstance(q, Gaussian):
        noise = tree.normal_like(key, q.mean, num_draws)
        squares = jax.vmap(lambda e: tree.total(jax.tree.map(jnp.square, e)))(noise)
        return jax.vmap(q.transform)(noise), 0.5 * (tree.size(q.mean) - squares) - q.entropy()
    assert isinstance(q, WithDensity)
    draws = q.sample(key, num_draws)
    return draws, jax.vmap(q.log_prob)(draws)


def final_lower_bound(
    algorithm: Algorithm,
    target: Target,
    state: PyTree,
    key: Array,
    validation: Batch | None,
    plan: EvaluationPlan | None = None,
) -> float:
    """The lower bound from draws that had no part in any choice."""
    plan = EvaluationPlan(1) if plan is None else plan
    target = plan.bind(target, plan.rows_of(target.data))
    bounds = [
        planned(plan, algorithm, target, state, key, validation)["elbo"]
        for key in jax.random.split(key, plan.final)
    ]
    return float(np.mean(bounds))
