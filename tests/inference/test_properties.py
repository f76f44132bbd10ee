"""Whatever valid input: a finite, normalised posterior with positive variances, or a named error.

The short form varies scales, offsets, seeds and step sizes on shapes that compile once; the long
one (`--slow all`, BAYESLEARN_EXAMPLES=2000) walks all algorithms, their options, shapes and dtypes
as well, in layouts that each compile once.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import warnings
from collections import Counter

import equinox as eqx
import jax
import numpy as np
import problems
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bayeslearn as bl
from bayeslearn.algorithms.base import hyper_parameters

SHORT, LONG = 100, int(os.environ.get("BAYESLEARN_EXAMPLES", "40"))
MOST_ERRORS = 0.05
NUM_CLASSES = 3
MIN_LAYOUTS = 6
# Options that are valid beside another only.
PARTNERS = {
    ("laplace", curvature): {"covariance": "diagonal"}
    for curvature in ("hutchinson", "fisher", "squares")
}


def exponents(low, high):
    """Powers of ten, evenly."""
    return st.floats(low, high).map(lambda e: float(10.0**e))


def layouts(name):
    """What compiles anew: shapes, dtypes, tasks and each option of an algorithm, all met once."""
    choices = [
        {option: choice, **PARTNERS.get((name, choice), {})}
        for option, about in hyper_parameters(bl.ALGORITHMS[name]).items()
        for choice in about["check"]["choices"] or ()
        if choice != about["default"]
    ]
    tasks = ["regression"] if name == "conjugate" else ["regression", "classification"]
    rows, columns, dtypes = [1, 2, 12, 40], [3, 1, 3], [None, "float64", None, "bfloat16", None]
    return [
        {
            "name": name,
            "options": choices[i // 2] if i % 2 and i // 2 < len(choices) else {},
            "task": tasks[i // 2 % len(tasks)],
            "rows": rows[i % len(rows)],
            "columns": columns[i % len(columns)],
            "dtype": dtypes[i % len(dtypes)],
        }
        for i in range(max(MIN_LAYOUTS, 2 * len(choices)))
    ]


def examples(layouts):
    return st.fixed_dictionaries(
        {
            "layout": st.sampled_from(layouts),
            "scale": exponents(-3, 3),
            "offset": st.floats(-3.0, 3.0),
            "noise": exponents(-3, 0),
            "rate": exponents(-1, 1),
            "seed": st.integers(0, 2**31),
            "has_twins": st.booleans(),
        }
    ).map(lambda drawn: drawn | drawn["layout"])


@functools.cache  # one object, so that it compiles once
def with_dropout(num_inputs, num_outputs):
    first, last = jax.random.split(jax.random.key(0))
    layers = [
        eqx.nn.Linear(num_inputs, 3, key=first),
        eqx.nn.Dropout(0.25),
        eqx.nn.Lambda(jax.numpy.tanh),
        eqx.nn.Linear(3, num_outputs, key=last),
    ]
    return eqx.nn.Sequential(layers)


def fitted(case):
    rng = np.random.default_rng(case["seed"])
    x = case["scale"] * (rng.normal(size=(case["rows"], case["columns"])) + case["offset"])
    if case["has_twins"] and case["columns"] > 1:
        x[:, 1] = x[:, 0]
    y = x[:, 0] / case["scale"] + case["noise"] * rng.normal(size=case["rows"])
    is_known = case["options"].get("noise") == "known"
    likelihood = bl.likelihoods.Gaussian(noise_scale=case["noise"] if is_known else None)
    if case["task"] == "classification":
        likelihood = bl.likelihoods.Categorical(num_classes=NUM_CLASSES)
        y = rng.integers(0, NUM_CLASSES, size=case["rows"])
    name = case["name"]
    algorithm = dataclasses.replace(problems.quick(name), **case["options"])
    network = bl.networks.MLP([] if algorithm.capabilities.needs_linear_model else [3])
    if case["options"].get("masks") == "network":
        num_outputs = NUM_CLASSES if case["task"] == "classification" else 1
        network = with_dropout(case["columns"], num_outputs)
    model = bl.Model(network, likelihood, dtype=case["dtype"])
    if hasattr(algorithm, "learning_rate"):
        rate = algorithm.setting("learning_rate") * case["rate"]
        algorithm = dataclasses.replace(algorithm, learning_rate=rate)
    options = problems.quick_options(name)
    return bl.fit(model, algorithm, (x, y), seed=case["seed"], **options), x


def check(case, outcomes):
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
    if getattr(family, "has_own_masks", False):
        pass  # the variance is in the network's own masks, and is seen in its predictions
    elif case["name"] == "mc-dropout" or posterior.draws is not None:
        # Masks of whole units, or fewer draws than weights: variance, but not in every direction.
        variances = np.linalg.eigvalsh(np.asarray(family.cov_matrix(), np.float64))
        assert variances.max() > 0
        assert variances.min() >= -1e-12 * variances.max()
    elif hasattr(family, "cov_matrix"):
        assert np.linalg.eigvalsh(np.asarray(family.cov_matrix(), np.float64)).min() > 0
    elif hasattr(family, "std") and case["name"] != "map":
        assert all(np.all(np.asarray(leaf) >= 0) for leaf in jax.tree.leaves(family.std))
    predictive = posterior.predict(x, num_samples=8)
    if case["task"] == "classification":
        np.testing.assert_allclose(np.sum(predictive.probs, axis=-1), 1.0, rtol=1e-5)
    else:
        assert np.all(np.isfinite(predictive.mean))
        assert np.all(np.asarray(predictive.std) > 0)


def run_examples(strategy, number):
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
    shape = {"task": "regression", "rows": 12, "columns": 2, "dtype": None, "options": {}}
    run_examples(examples([shape | {"name": name} for name in ("map", "vogn", "laplace")]), SHORT)


GROUPS = {
    "samplers": [n for n, a in sorted(bl.ALGORITHMS.items()) if a.capabilities.is_sampler],
    "bounds": [
        n
        for n, a in sorted(bl.ALGORITHMS.items())
        if a.capabilities.has_lower_bound and a.auto_steps > 1
    ],
}
GROUPS["others"] = sorted(set(bl.ALGORITHMS) - {n for names in GROUPS.values() for n in names})


@pytest.mark.slow(reason="every option of every algorithm compiles anew")
@pytest.mark.parametrize("group", GROUPS)
def test_options_shapes_dtypes_and_scales_of_every_algorithm(group):
    number = -(-LONG // len(bl.ALGORITHMS))
    for name in GROUPS[group]:
        print(name, dict(run_examples(examples(layouts(name)), number)))
