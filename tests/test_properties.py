"""Whatever valid input: a finite, normalised posterior with a positive spread, or a named error.

The short form varies scales, offsets, seeds and step sizes on shapes that compile once; the long
one (`--slow all`, BAYESLEARN_EXAMPLES=2000) walks all algorithms, shapes and dtypes as well.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter

import jax
import numpy as np
import problems
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bayeslearn as bl

SHORT, LONG = 100, int(os.environ.get("BAYESLEARN_EXAMPLES", "40"))
MOST_ERRORS = 0.05
NUM_CLASSES = 3


def exponents(low, high):
    """Powers of ten, evenly."""
    return st.floats(low, high).map(lambda e: float(10.0**e))


def examples(names, rows, columns, dtypes):
    return st.fixed_dictionaries(
        {
            "name": st.sampled_from(names),
            "task": st.sampled_from(["regression", "classification"]),
            "rows": st.sampled_from(rows),
            "columns": st.sampled_from(columns),
            "dtype": st.sampled_from(dtypes),
            "scale": exponents(-3, 3),
            "offset": st.floats(-3.0, 3.0),
            "noise": exponents(-3, 0),
            "rate": exponents(-1, 1),
            "seed": st.integers(0, 2**31),
            "has_twins": st.booleans(),
        }
    )


def fitted(case):
    rng = np.random.default_rng(case["seed"])
    x = case["scale"] * (rng.normal(size=(case["rows"], case["columns"])) + case["offset"])
    if case["has_twins"] and case["columns"] > 1:
        x[:, 1] = x[:, 0]
    y = x[:, 0] / case["scale"] + case["noise"] * rng.normal(size=case["rows"])
    likelihood = bl.likelihoods.Gaussian()
    if case["task"] == "classification":
        likelihood = bl.likelihoods.Categorical(num_classes=NUM_CLASSES)
        y = rng.integers(0, NUM_CLASSES, size=case["rows"])
    name, algorithm = case["name"], problems.quick(case["name"])
    layers = [] if algorithm.needs_linear_model else [3]
    model = bl.Model(bl.networks.MLP(layers), likelihood, dtype=case["dtype"])
    if hasattr(algorithm, "learning_rate"):
        algorithm = bl.ALGORITHMS[name](learning_rate=algorithm.learning_rate * case["rate"])
    options = problems.quick_options(name)
    return bl.fit(model, algorithm, (x, y), seed=case["seed"], **options), x


def check(case, outcomes):
    if case["name"] == "conjugate" and case["task"] == "classification":
        return  # which it refuses, as it says
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bl.MixingWarning)
            warnings.simplefilter("ignore", bl.DataWarning)  # of a single row, and of odd scales
            posterior, x = fitted(case)
    except bl.BayesLearnError as error:
        outcomes[type(error).__name__] += 1
        return
    outcomes["posterior"] += 1
    family = posterior.family
    for leaf in jax.tree.leaves((family, posterior.trace)):
        if np.issubdtype(np.asarray(leaf).dtype, np.inexact):
            is_trace = any(leaf is values for values in posterior.trace.values())
            assert is_trace or np.all(np.isfinite(leaf))
    if hasattr(family, "cov_matrix"):
        assert np.linalg.eigvalsh(np.asarray(family.cov_matrix(), np.float64)).min() > 0
    elif hasattr(family, "std") and case["name"] not in ("map", "mc-dropout"):
        assert all(np.all(np.asarray(leaf) >= 0) for leaf in jax.tree.leaves(family.std))
    predictive = posterior.predict(x, num_samples=8)
    if case["task"] == "classification":
        np.testing.assert_allclose(np.sum(predictive.probs, axis=-1), 1.0, rtol=1e-5)
    else:
        assert np.all(np.isfinite(predictive.mean))
        assert np.all(np.asarray(predictive.std) > 0)


def walk(strategy, number):
    outcomes: Counter = Counter()

    @settings(max_examples=number, deadline=None, database=None, derandomize=True)
    @given(strategy)
    def one(case):
        check(case, outcomes)

    one()
    total = sum(outcomes.values())
    assert total - outcomes["posterior"] <= MOST_ERRORS * total, outcomes
    return outcomes


def test_scales_offsets_and_step_sizes():
    walk(examples(["map", "vogn", "laplace"], [12], [2], [None]), SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(bl.ALGORITHMS))
def test_shapes_dtypes_and_scales_of_every_algorithm(name):
    strategy = examples([name], [1, 2, 12, 40], [1, 3], [None, "float64", "bfloat16"])
    print(name, dict(walk(strategy, max(1, LONG // len(bl.ALGORITHMS)))))
