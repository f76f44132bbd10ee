"""Draws of a sampler as a family: a sample of them depends on the key and comes from all chains."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn.families import Draws

CHAINS, KEPT = 4, 25


@pytest.fixture(scope="module")
def posterior():
    """Weights of which each says by itself which draw of which chain it is."""
    problem = problems.regression()
    fitted = bl.fit(problem.model, "conjugate", (problem.x, problem.y), seed=0)
    numbers = np.arange(CHAINS * KEPT, dtype=float).reshape(CHAINS, KEPT)
    draws = jax.tree.map(
        lambda w: np.broadcast_to(
            numbers.reshape(CHAINS, KEPT, *[1] * w.ndim), (CHAINS, KEPT, *w.shape)
        ),
        fitted.family.mean,
    )
    return dataclasses.replace(fitted, family=Draws(draws))


def numbers_of(sample):
    """The draw that each entry is of; all leaves are of the same."""
    leaves = [np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(sample)]
    table = np.concatenate(leaves, axis=1)
    assert np.all(table == table[:, :1])
    return table[:, 0].astype(int)


def test_one_draw_depends_on_the_key(posterior):
    found = [numbers_of(posterior.sample(key))[0] for key in range(40)]
    assert len(set(found)) > 20  # 33 of 100 expected
    assert len({number // KEPT for number in found}) == CHAINS
    again = numbers_of(posterior.sample(jax.random.key(3)))[0]
    assert again == found[3]


@pytest.mark.parametrize("num", [2, 20, CHAINS * KEPT])
def test_up_to_all_draws_come_without_replacement(posterior, num):
    first, second = (numbers_of(posterior.sample(key, num)) for key in (0, 1))
    assert len(set(first)) == len(set(second)) == num
    assert first.tolist() != second.tolist()
    if num == 20:  # misses one of four chains: less than 1 %
        assert len(set(first // KEPT)) == CHAINS


def test_more_than_all_come_with_replacement(posterior):
    found = numbers_of(posterior.sample(0, 3 * CHAINS * KEPT))
    assert len(found) == 3 * CHAINS * KEPT
    assert set(found) <= set(range(CHAINS * KEPT))
    assert len(set(found // KEPT)) == CHAINS
    assert found.tolist() != numbers_of(posterior.sample(1, 3 * CHAINS * KEPT)).tolist()


def test_predictions_thin_evenly_over_all_chains(posterior):
    """Without a key: the same draws each time."""
    found = numbers_of(posterior.family.thinned(8))
    assert len(set(found // KEPT)) == CHAINS
    assert np.all(np.diff(found) > 0)
