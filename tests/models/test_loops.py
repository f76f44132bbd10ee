"""A `lax.while_loop` in a network has no reverse-mode gradient, and is refused by name."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn.errors import ArgumentError
from bayeslearn.gradients.loops import check_loops, has_while

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3)).astype(np.float32)
Y = X[:, 0] + 0.1 * RNG.normal(size=12)
PARAMS = {"w": 0.3 * np.ones(3, np.float32)}
REFUSED = (
    r"`network` must have a reverse-mode gradient for map, got a lax.while_loop, or a"
    r" lax.fori_loop whose bounds are computed,. Use lax.scan"
)


def halved(value: Any) -> Any:
    return jax.lax.while_loop(lambda v: jnp.abs(v) > 1.0, lambda v: 0.5 * v, value)


def bare(p: Any, x: Any) -> Any:
    return halved(p["w"] @ x)


def in_scan(p: Any, x: Any) -> Any:
    return jax.lax.scan(lambda c, v: (halved(c + v), None), 0.0, p["w"] * x)[0]


def in_cond(p: Any, x: Any) -> Any:
    return jax.lax.cond(x[0] > 0, halved, lambda v: v, p["w"] @ x)


def in_jit(p: Any, x: Any) -> Any:
    return jax.jit(halved)(p["w"] @ x)


def computed_bounds(p: Any, x: Any) -> Any:
    times = jnp.where(x[0] > 0, 2, 3)
    return jax.lax.fori_loop(0, times, lambda i, v: jnp.tanh(v), p["w"] @ x)


def static_loop(p: Any, x: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda i, v: jnp.tanh(v), p["w"] @ x)


def of_the_row_alone(p: Any, x: Any) -> Any:
    return p["w"] @ jax.vmap(halved)(x)


@jax.custom_vjp
def root(v: Any) -> Any:
    return jax.lax.while_loop(lambda r: jnp.abs(r - jnp.cos(v * r)) > 1e-3, jnp.cos, v)


root.defvjp(lambda v: (root(v), v), lambda v, d: (d,))


def own_derivative(p: Any, x: Any) -> Any:
    return root(p["w"] @ x)


def model(apply: Any) -> bl.Model:
    return bl.Model((PARAMS, apply), bl.likelihoods.Gaussian(0.3))


@pytest.mark.parametrize("apply", [bare, in_scan, in_cond, in_jit, computed_bounds])
def test_refused_by_name(apply):
    with pytest.raises(ArgumentError, match=REFUSED):
        bl.fit(model(apply), bl.MAP(), (X, Y), seed=0, num_steps=3)


def test_refused_also_where_the_steps_need_no_gradient():
    """The scale of the first steps comes from the curvature."""
    with pytest.raises(ArgumentError, match="reverse-mode gradient for metropolis-hastings"):
        bl.fit(model(bare), bl.MetropolisHastings(num_samples=20), (X, Y), seed=0)


@pytest.mark.parametrize("apply", [static_loop, of_the_row_alone])
def test_loops_with_a_gradient_are_fitted(apply):
    posterior = bl.fit(model(apply), bl.MAP(), (X, Y), seed=0, num_steps=20)
    assert np.all(np.isfinite(posterior.predict(X).mean))


def test_a_loop_with_a_derivative_of_its_own_may_stay():
    target, start = model(own_derivative).bind((X, Y), jax.random.key(0))
    assert has_while(jax.make_jaxpr(lambda p: own_derivative(p, X[0]))(start["network"]))
    check_loops(target, start, "map")


def test_a_density_with_a_loop_is_refused():
    target = bl.Target.from_log_density(lambda p: -halved(jnp.sum(p["w"] ** 2)), PARAMS)
    with pytest.raises(ArgumentError, match="`log_density` must have a reverse-mode gradient"):
        bl.fit(target, bl.BayesByBackprop(), seed=0, num_steps=3)
