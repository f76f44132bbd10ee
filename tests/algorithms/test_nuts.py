"""NUTS's tree: where it turns, which leaf it draws, and what a step leaves as it was."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import chisquare

import bayeslearn as bl
from bayeslearn.algorithms.nuts import PhasePoint, TreeStats, grow

LEAVES, DOUBLINGS = 32, 6
SCALE = np.array([0.5, 2.0])  # of the metric, so that velocities are not momenta


@jax.jit
def walk(momenta, uniform):
    """A branch of leaves with given momenta, whose log-densities hold their energies at i / 9."""

    def advance(point):
        leaf = point.position[0].astype(int) + 1
        momentum = momenta[leaf]
        log_density = 0.5 * momentum @ (SCALE * momentum) - leaf / 9
        return PhasePoint(point.position + 1, momentum, log_density, point.gradient)

    start = PhasePoint(jnp.asarray([-1.0, 0]), jnp.zeros(2), jnp.zeros(()), jnp.zeros(2))
    no = jnp.asarray(False)
    stats = TreeStats(jnp.zeros((), jnp.int32), jnp.zeros(()), no, no)
    return grow(
        advance, lambda p: SCALE * p, jnp.zeros(()), start, LEAVES, DOUBLINGS, uniform, stats
    )


def turns(momenta):
    total = momenta.sum(axis=0) - 0.5 * (momenta[0] + momenta[-1])
    return total @ (SCALE * momenta[0]) <= 0 or total @ (SCALE * momenta[-1]) <= 0


def leaves_until_a_subtree_turns(momenta):
    """By the definition: all balanced subtrees, checked when their last leaf is there."""
    for last in range(LEAVES):
        size = 2
        while (last + 1) % size == 0 and size <= LEAVES:
            if turns(momenta[last + 1 - size : last + 1]):
                return last + 1
            size *= 2
    return None


def test_a_branch_ends_with_the_first_subtree_that_turns(x64):
    rng = np.random.default_rng(0)
    found = []
    for scale in np.linspace(0.1, 3.0, 60):
        momenta = rng.normal(size=(LEAVES, 2)) * scale + np.array([1.0, 0.3])
        _, branch, stats = walk(momenta, 0.5)
        wanted = leaves_until_a_subtree_turns(momenta)
        assert bool(stats.turning) == (wanted is not None)
        assert int(stats.num_gradients) == (wanted or LEAVES)
        assert not bool(stats.diverging)
        np.testing.assert_allclose(branch.momentum, momenta[: wanted or LEAVES].sum(axis=0))
        found.append(wanted)
    assert {None, 2, 4, 8} <= set(found)


def test_a_leaf_is_drawn_in_proportion_to_its_weight(x64):
    """Over a grid of the one uniform number, as many times as its weight says, to one in all."""
    momenta, num = np.tile([1.0, 0.3], (LEAVES, 1)), 20_000
    uniforms = (np.arange(num) + 0.5) / num
    _, branch, stats = jax.vmap(walk, (None, 0))(momenta, jnp.asarray(uniforms))
    assert not np.any(stats.turning)
    drawn = np.bincount(np.asarray(branch.drawn[0][:, 0], int), minlength=LEAVES)
    weights = np.exp(-np.arange(LEAVES) / 9)
    np.testing.assert_allclose(branch.log_weight, np.log(weights.sum()), rtol=1e-12)
    assert np.max(np.abs(drawn - num * weights / weights.sum())) <= LEAVES


def logistic(w):
    return jnp.sum(jax.nn.log_sigmoid(w) + jax.nn.log_sigmoid(-w))


def test_a_step_leaves_the_density_as_it_is(x64):
    """Draws of the density are such draws after a step, also with steps whose energies are off."""
    num, bins = 20_000, 20
    target = bl.Target.from_log_density(logistic, jnp.zeros(1))
    algorithm = bl.NUTS(num_warmup=0, max_doublings=4, mass_matrix="identity")
    state = algorithm.init(jax.random.key(0), target, jnp.zeros(1))
    uniform = np.random.default_rng(1).uniform(size=(num, 1))
    position = jnp.asarray(np.log(uniform) - np.log1p(-uniform))

    @jax.jit
    def stepped(step_size):
        warmup = state.warmup._replace(step_size=step_size)

        def one(key, position):
            log_density, gradient = jax.value_and_grad(logistic)(position)
            now = state._replace(
                position=position, log_density=log_density, gradient=gradient, warmup=warmup
            )
            return algorithm.step(key, target, now, None)

        return jax.vmap(one)(jax.random.split(jax.random.key(2), num), position)

    for step_size in (0.3, 2.5):
        new, info = stepped(step_size)
        moved = np.asarray(jax.nn.sigmoid(new.position))[:, 0]
        assert chisquare(np.histogram(moved, bins, (0, 1))[0]).pvalue > 1e-3
        assert np.mean(np.abs(moved - uniform[:, 0])) > 0.1
        assert len(np.unique(info.num_gradients)) > 1
        log_density, gradient = jax.vmap(jax.value_and_grad(logistic))(new.position)
        np.testing.assert_allclose(new.log_density, log_density, rtol=1e-12)
        np.testing.assert_allclose(new.gradient, gradient, atol=1e-12)
