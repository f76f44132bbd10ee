"""What every algorithm must do, whichever it is: the tests go through `bl.ALGORITHMS`."""

from __future__ import annotations

import dataclasses
import inspect
import json

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.algorithms import hyper_parameters
from bayeslearn.errors import ArgumentError

NAMES = problems.STEPPING
VOCABULARY = {
    "init": ["self", "key", "target", "params"],
    "step": ["self", "key", "target", "state", "batch"],
    "position": ["self", "state"],
    "approximation": ["self", "target", "state", "draws"],
}


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def bound():
    model = problems.small_model()
    return model.bind(problems.wiggle(), jax.random.key(0))


def leaves(values):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(values) if leaf is not None]


def assert_same(a, b):
    for left, right in zip(leaves(a), leaves(b), strict=True):
        np.testing.assert_array_equal(left, right)


def test_argument_names(name):
    algorithm = bl.ALGORITHMS[name]
    assert algorithm.name == name
    assert algorithm.title
    for method, names in VOCABULARY.items():
        assert list(inspect.signature(getattr(algorithm, method)).parameters) == names


def test_hyper_parameters_are_documented_checked_and_leaves(name):
    documented = hyper_parameters(bl.ALGORITHMS[name])
    assert {f.name for f in dataclasses.fields(bl.ALGORITHMS[name])} == set(documented)
    for field, metadata in documented.items():
        assert metadata["doc"], field
        assert field in bl.ALGORITHMS[name].__doc__
        json.dumps(metadata["default"])
        if metadata["check"]["free"]:
            continue
        with pytest.raises(ArgumentError, match=rf"`{field}` must .*, got <object object"):
            bl.ALGORITHMS[name](**{field: object()})
        bounds = {"above": 0, "least": -1, "below": 0, "most": 1}
        for bound_name, shift in bounds.items():
            limit = metadata["check"][bound_name]
            if limit is not None:
                bad = type(metadata["default"] or 1)(limit + shift)
                with pytest.raises(ArgumentError, match=f"`{field}` must"):
                    bl.ALGORITHMS[name](**{field: bad})


def test_numbers_are_dynamic_and_the_rest_is_static(name):
    algorithm = bl.ALGORITHMS[name]()
    for field in dataclasses.fields(algorithm):
        is_number = isinstance(field.metadata["default"], float) or field.metadata["check"]["real"]
        assert field.metadata.get("static", False) == (not is_number), field.name
    again = jax.tree.unflatten(jax.tree.structure(algorithm), jax.tree.leaves(algorithm))
    assert again == algorithm


def test_step_keeps_structure_types_and_is_pure(name, x64):
    algorithm, (target, params) = problems.quick(name), bound()
    init, step = jax.jit(algorithm.init), jax.jit(algorithm.step)
    state = init(jax.random.key(1), target, params)
    assert type(state).__name__.endswith("State")
    assert isinstance(state, tuple)
    new, info = step(jax.random.key(2), target, state, target.data)
    assert isinstance(info, tuple)
    assert hasattr(info, "_fields")
    assert all(np.shape(value) == () for value in info)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    for old_leaf, new_leaf in zip(jax.tree.leaves(state), jax.tree.leaves(new), strict=True):
        assert old_leaf.dtype == new_leaf.dtype
        assert old_leaf.shape == new_leaf.shape
    assert_same(step(jax.random.key(2), target, state, target.data), (new, info))
    if algorithm.capabilities.is_sampler:
        assert jax.tree.structure(algorithm.position(state)) == jax.tree.structure(params)
    else:
        q = algorithm.approximation(target, state)
        assert jax.tree.structure(q.mean) == jax.tree.structure(params)


def test_a_batched_step_is_the_single_step(name, x64):
    problem = problems.regression()
    target, params = problem.model.bind((problem.x, problem.y), jax.random.key(0))
    algorithm = problems.quick(name)
    keys = jax.random.split(jax.random.key(3), 2)
    state = jax.jit(algorithm.init)(keys[0], target, params)
    step = jax.jit(lambda k: algorithm.step(k, target, state, target.data))
    batched = jax.jit(jax.vmap(lambda k: algorithm.step(k, target, state, target.data)))(keys)
    for i, k in enumerate(keys):
        for left, right in zip(leaves(step(k)), leaves(batched), strict=True):
            np.testing.assert_allclose(left, right[i], rtol=1e-12, atol=1e-12)


SEEN = []  # types of the numbers that the network below was traced with


def init_network(key, x, num_outputs):
    first, second = jax.random.split(key)
    return {
        "v": jax.random.normal(first, (x.shape[-1], 3)),
        "w": jax.random.normal(second, (3, num_outputs)),
    }


def apply_network(params, x):
    hidden = jnp.tanh(x @ params["v"])
    SEEN.append((params["v"].dtype, x.dtype, hidden.dtype, (hidden @ params["w"] + 1.0).dtype))
    return hidden @ params["w"]


def init_linear(key, x, num_outputs):
    return {"w": jax.random.normal(key, (x.shape[-1], num_outputs))}


def apply_linear(params, x):
    SEEN.append((params["w"].dtype, x.dtype, (x @ params["w"] + 1.0).dtype))
    return x @ params["w"]


def network_for(name):
    is_linear = bl.ALGORITHMS[name].capabilities.needs_linear_model
    return (init_linear, apply_linear) if is_linear else (init_network, apply_network)


def model_for(name):
    return bl.Model(network_for(name), bl.likelihoods.Gaussian())


def test_fits(name, compiles, tmp_path):
    """The same bits again and at any chunk size, without compiling again, and after loading; the
    user's settings of JAX are left alone, and the network computes in its own type."""
    data = problems.wiggle()
    model = model_for(name)
    options = {"seed": 3, **problems.quick_options(name)}
    algorithm = problems.quick(name)
    SEEN.clear()
    assert not jax.config.jax_enable_x64
    first = run(model, algorithm, data, **options)
    predicted = first.predict(data[0][:3])
    assert np.all(np.isfinite(predicted.std))
    assert not jax.config.jax_enable_x64
    assert jnp.ones(3).dtype == jnp.float32
    assert {dtype for row in SEEN for dtype in row} == {jnp.dtype(jnp.float32)}
    with compiles() as seen:
        # another learning rate or step size, and other data of the same shape
        other = dataclasses.replace(algorithm, **slightly_changed(algorithm))
        run(model_for(name), other, problems.wiggle(seed=1), **options)
        again = run(model_for(name), problems.quick(name), data, **options)
    assert not seen, seen
    assert_same(first.family, again.family)
    assert_same(first.trace, again.trace)
    chunked = run(model, algorithm, data, options=bl.FitOptions(chunk_size=7), **options)
    assert_same(first.family, chunked.family)
    assert_same(first.trace, chunked.trace)
    first.save(tmp_path / "posterior")
    loaded = bl.load(tmp_path / "posterior", network_for(name))
    assert_same(first.family, loaded.family)
    assert_same(first.trace, loaded.trace)
    np.testing.assert_array_equal(predicted.mean, loaded.predict(data[0][:3]).mean)


def slightly_changed(algorithm):
    for field in dataclasses.fields(algorithm):
        if field.name in ("learning_rate", "step_size", "target_acceptance"):
            value = getattr(algorithm, field.name)
            return {field.name: 0.9 * value if value else 0.3}
    return {}


# One method of each kind in numbers, the others in the structure of their steps.
IN_NUMBERS = ("map", "bayes-by-backprop", "emgvb", "laplace", "hmc")


def assert_steps(algorithm, target, params):
    def stepped(key):
        state = algorithm.init(key, target, params)
        return algorithm.step(key, target, state, target.data)[0], state

    with jax.enable_x64(True):
        new, first = jax.eval_shape(stepped, jax.random.key(0))
    assert jax.tree.structure(new) == jax.tree.structure(first)


def test_classification(name):
    algorithm = problems.quick(name)
    x, y = problems.two_classes()
    model = problems.small_model(bl.likelihoods.Bernoulli())
    if algorithm.capabilities.needs_linear_model:
        with pytest.raises(ArgumentError):
            bl.fit(model, algorithm, (x, y), seed=0)
        return
    assert_steps(algorithm, *model.bind((x, y), jax.random.key(0)))
    if name in IN_NUMBERS:
        posterior = run(model, algorithm, (x, y), seed=0, **problems.quick_options(name))
        probs = posterior.predict(x).probs
        assert probs.shape == (len(x), 2)
        np.testing.assert_allclose(probs.sum(axis=1), 1.0, atol=1e-10)


def test_bare_densities(name):
    algorithm = problems.quick(name)
    start = {"a": jnp.zeros(2), "b": jnp.ones(())}
    target = bl.Target.from_log_density(log_density, start)
    needs = algorithm.capabilities
    if needs.needs_per_example or needs.needs_gaussian_prior:
        with pytest.raises(ArgumentError, match="bare log-density"):
            bl.fit(target, algorithm, seed=0, **problems.quick_options(name))
        return
    assert_steps(algorithm, target, start)
    if name in IN_NUMBERS:
        posterior = run(target, algorithm, seed=0, **problems.quick_options(name))
        assert all(np.all(np.isfinite(leaf)) for leaf in leaves(posterior.family))
        assert tree.size(posterior.family.mean) == 3


def log_density(params):
    return -0.5 * jnp.sum((params["a"] - 1.0) ** 2) - 2.0 * params["b"] ** 2


def run(model, algorithm, data=None, **options):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bl.MixingWarning)
        return bl.fit(model, algorithm, data, **options)
