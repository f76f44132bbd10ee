"""Posteriors on disk: the same bits after loading, and nothing but the named error for the rest."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from mutations import break_bytes, break_json, seal, with_checksums

import bayeslearn as bl
from bayeslearn import families, tree
from bayeslearn.errors import ArgumentError, StorageError
from bayeslearn.precision import inside_double_precision, to_host
from bayeslearn.results import diagnostics
from bayeslearn.storage import codec, folders, registry

NAMES = problems.STEPPING
X = np.linspace(-2.0, 2.0, 7)[:, None]


def leaves(values):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(values)]


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for left, right in zip(leaves(a), leaves(b), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


def assert_same_posterior(a, b, x=X):
    """All that a loaded posterior promises, to the bit."""
    assert type(a.family) is type(b.family)
    assert_same(a.family, b.family)
    assert a.trace.keys() == b.trace.keys()
    for name, values in a.trace.items():
        assert values.dtype == b.trace[name].dtype
        np.testing.assert_array_equal(values, b.trace[name])
    for name in ("elbo", "stopped", "notes", "seed", "wall_time", "compile_time", "algorithm"):
        assert getattr(a, name) == getattr(b, name), name
    assert repr(a) == repr(b)
    assert_same(a.sample(3, 2), b.sample(3, 2))
    for left, right in zip(a.summary(), b.summary(), strict=True):
        assert left["name"] == right["name"]
        for column in ("mean", "std", "lower", "upper"):
            np.testing.assert_array_equal(left[column], right[column])
    if not a.target.is_density:
        for left, right in zip(predictions(a, x), predictions(b, x), strict=True):
            np.testing.assert_array_equal(left, right)


def predictions(posterior, x=X):
    predictive = posterior.predict(x)
    return [predictive.mean, predictive.epistemic, predictive.aleatoric]


def make(target, algorithm, family, **parts):
    """A posterior that no loop has made, for what does not depend on the loop."""
    usual = {
        "state": None,
        "trace": {
            "eval_elbo": np.array([-2.5, np.nan]),
            "eval_step": np.array([5, 10]),
            "nll": np.arange(10, dtype=np.float32),
        },
        "elbo": -1.25,
        "stopped": "All was done.",
        "notes": ("One.", "Two."),
        "seed": 7,
        "wall_time": 1.5,
        "compile_time": 0.5,
    }
    return bl.Posterior(target=target, algorithm=algorithm, family=family, **{**usual, **parts})


def posterior_of(name, model=None, data=None):
    """What the algorithm's first state gives, without its steps."""
    algorithm = problems.quick(name)
    sizes = [] if algorithm.capabilities.needs_linear_model else [3]
    model = model or bl.Model(bl.networks.MLP(sizes), bl.likelihoods.Gaussian())
    with inside_double_precision():
        target, params = model.bind(data or problems.wiggle(20), jax.random.key(0))
        state, draws = None, None
        if algorithm.capabilities.is_sampler:
            away = tree.double(tree.normal_like(jax.random.key(1), params, 40))
            draws = jax.tree.map(lambda w, e: (w + 0.1 * e).reshape(2, 20, *w.shape), params, away)
        else:
            state = jax.jit(algorithm.init)(jax.random.key(1), target, params)
        family = to_host(algorithm.approximation(target, state, draws))
    return make(target, algorithm, family)


@pytest.fixture(scope="module")
def point():
    return posterior_of("map")


@pytest.fixture(scope="module")
def sampled():
    """Chains near the start, with the trace that diagnostics look at."""
    trace = {"log_density": np.random.default_rng(0).normal(size=(2, 20))}
    return dataclasses.replace(posterior_of("hmc"), trace=trace, elbo=None)


# The same bits


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_comes_back(name, point, tmp_path):
    posterior = dataclasses.replace(point, algorithm=problems.quick(name))
    posterior.save(tmp_path / "run")
    assert bl.load(tmp_path / "run").algorithm == posterior.algorithm


@pytest.mark.parametrize("name", ["map", "hmc", "mc-dropout", "von", "laplace", "conjugate"])
def test_every_family_comes_back(name, tmp_path):
    posterior = posterior_of(name)
    posterior.save(tmp_path / "run")
    loaded = bl.load(tmp_path / "run")
    assert_same_posterior(posterior, loaded)
    assert not jax.config.jax_enable_x64
    loaded.save(tmp_path / "again")
    assert_same_posterior(posterior, bl.load(str(tmp_path / "again")))


def test_another_process_predicts_the_same_bits(sampled, point, tmp_path):
    kept = {"hmc": sampled, "map": point}
    for name, posterior in kept.items():
        posterior.save(tmp_path / name)
    code = (
        "import sys, numpy as np, bayeslearn as bl\n"
        "x = np.linspace(-2.0, 2.0, 7)[:, None]\n"
        "for name in sys.argv[2:]:\n"
        "    p = bl.load(f'{sys.argv[1]}/{name}').predict(x)\n"
        "    np.savez(f'{sys.argv[1]}/{name}.npz', p.mean, p.epistemic, p.aleatoric)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path), *kept], check=True)
    for name, posterior in kept.items():
        with np.load(tmp_path / f"{name}.npz") as predictive:
            for left, right in zip(predictions(posterior), predictive.values(), strict=True):
                np.testing.assert_array_equal(left, right)


def test_a_sampler_keeps_its_trace_and_diagnostics_without_its_rows(sampled, tmp_path):
    sampled.save(tmp_path / "run")
    loaded = bl.load(tmp_path / "run")
    assert_same_posterior(sampled, loaded)
    for left, right in zip(sampled.diagnostics(), loaded.diagnostics(), strict=True):
        np.testing.assert_array_equal(left, right)
    loaded.save(tmp_path / "again")
    again = bl.load(tmp_path / "again").diagnostics()
    np.testing.assert_array_equal(again.rhat_predictions, sampled.diagnostics().rhat_predictions)


def test_rows_are_not_saved_and_what_needs_them_says_so(tmp_path):
    x, y = problems.wiggle(20)
    x[3] = 1.2345678
    posterior = posterior_of("map", data=(x, y))
    posterior.save(tmp_path / "run")
    content = b"".join(path.read_bytes() for path in (tmp_path / "run").iterdir())
    assert np.float32(1.2345678).tobytes() not in content
    loaded = bl.load(tmp_path / "run")
    assert int(loaded.target.num_data) == 20
    assert problems.arviz_groups(loaded.to_arviz()) == {"posterior", "sample_stats"}
    with pytest.raises(ArgumentError, match="rows of shape"):
        loaded.predict(np.zeros((2, 3)))
    for attempt in (
        lambda: bl.fit(loaded.target, "map", seed=0, num_steps=1),
        lambda: loaded.target.log_joint(loaded.family.mean),
        lambda: loaded.target.scale(),
        lambda: diagnostics.all_rows(loaded),
    ):
        with pytest.raises(ArgumentError, match="needs the training rows"):
            attempt()


def test_a_loaded_posterior_is_updated_like_the_first(sampled, tmp_path):
    sampled.save(tmp_path / "run")
    new = problems.wiggle(2, seed=5)
    first, second = (p.update(new) for p in (sampled, bl.load(tmp_path / "run")))
    assert "importance weights" in second.notes[0], second.notes
    assert_same(first.family, second.family)
    assert int(first.target.num_data) == int(second.target.num_data) == 22
    second.save(tmp_path / "run", overwrite=True)
    assert bl.load(tmp_path / "run").notes == first.notes


LIKELIHOODS = {
    "learned": lambda: bl.likelihoods.Gaussian(),
    "known": lambda: bl.likelihoods.Gaussian(0.3),
    "by column": lambda: bl.likelihoods.Gaussian(np.array([0.3])),
    "heteroscedastic": lambda: bl.likelihoods.HeteroscedasticGaussian(),
    "covariance": lambda: bl.likelihoods.MultivariateGaussian(),
}
PRIORS = {
    "normal": lambda: bl.priors.Normal(scale={"*.bias": 10.0, "*": np.float32(0.5)}),
    "learned": lambda: bl.priors.Normal(learn=True),
    "full": lambda: bl.priors.Normal(cov=0.5 * np.eye(10)),
    "mixture": lambda: bl.priors.ScaleMixture(),
    "hierarchical": lambda: bl.priors.Hierarchical(by_input="layers.0.*"),
    "laplace": lambda: bl.priors.Laplace(scale=0.5),
}


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_likelihoods_come_back(likelihood, tmp_path):
    check_model(bl.Model(bl.networks.MLP([3]), LIKELIHOODS[likelihood]()), tmp_path)


@pytest.mark.parametrize("prior", PRIORS)
def test_priors_come_back(prior, tmp_path):
    model = bl.Model(bl.networks.MLP([3]), bl.likelihoods.Gaussian(0.3), PRIORS[prior]())
    posterior, loaded = check_model(model, tmp_path)
    assert_same(posterior.target.prior, loaded.target.prior)
    with inside_double_precision():
        left, right = (p.target.log_prior(p.family.mean) for p in (posterior, loaded))
    assert left == right


@pytest.mark.parametrize(
    ("likelihood", "y"),
    [
        (bl.likelihoods.Bernoulli(), np.arange(20) % 2),
        (bl.likelihoods.Categorical(), np.arange(20) % 3),
        (bl.likelihoods.Poisson(), np.arange(20)),
        (bl.likelihoods.NegativeBinomial(), np.arange(20)),
        (bl.likelihoods.ZeroInflatedPoisson(), np.arange(20)),
        (bl.likelihoods.Ordinal(), np.arange(20) % 3),
        (bl.likelihoods.MultiLabelBernoulli(), np.eye(4, dtype=int)[np.arange(20) % 4]),
        (bl.likelihoods.LogNormal(), np.arange(1.0, 21.0)),
        (bl.likelihoods.Gamma(), np.arange(1.0, 21.0)),
        (bl.likelihoods.Beta(), np.arange(1.0, 21.0) / 21),
        (bl.likelihoods.CensoredGaussian(), np.stack([np.arange(20), np.arange(20) % 2], axis=1)),
        (bl.likelihoods.Weibull(), np.stack([np.arange(1, 21), np.arange(20) % 2], axis=1)),
    ],
)
def test_observations_come_back(likelihood, y, tmp_path):
    check_model(bl.Model(bl.networks.MLP([3]), likelihood), tmp_path, y)


def check_model(model, folder, y=None):
    x, values = problems.wiggle(20)
    with inside_double_precision():
        target, params = model.bind((x, values if y is None else y), jax.random.key(0))
        family = families.Point(to_host(params))
    posterior = make(target, bl.MAP(), family)
    posterior.save(folder / "run")
    loaded = bl.load(folder / "run")
    assert_same_posterior(posterior, loaded)
    assert_same(posterior.target.likelihood, loaded.target.likelihood)
    return posterior, loaded


def test_block_gaussians_and_inputs_that_are_trees(tmp_path):
    def init(key, x, num_outputs):
        return {"a": jnp.ones((2, 1)), "b": (jnp.zeros(1), jnp.ones(3))}

    def apply(params, x):
        return x["u"] @ params["a"] + params["b"][0] + jnp.sum(x["v"] * params["b"][1])

    x = {"u": np.ones((5, 2), np.float32), "v": np.arange(15).reshape(5, 3)}
    model = bl.Model((init, apply), bl.likelihoods.Gaussian())
    with inside_double_precision():
        target, params = model.bind((x, np.arange(5.0)), jax.random.key(0))
        groups = families.make_groups(params, "leaf")
        family = to_host(families.BlockGaussian.from_std(params, 0.1, groups))
    posterior = make(target, bl.Laplace(covariance="block"), family)
    posterior.save(tmp_path / "run")
    assert_same_posterior(posterior, bl.load(tmp_path / "run", network=(init, apply)), x)


@pytest.mark.parametrize("name", ["laplace", "hmc"])
def test_a_posterior_over_a_part_of_the_network_comes_back(name, tmp_path):
    model = bl.Model(bl.networks.MLP([3]), bl.likelihoods.Gaussian(), bayesian="layers.1.*")
    with inside_double_precision():
        target, params = model.freeze(*model.bind(problems.wiggle(20), jax.random.key(0)))
        if name == "hmc":
            family = families.Draws(jax.tree.map(lambda w: jnp.stack([w, w + 1])[None], params))
        else:
            family = families.FullGaussian.from_std(params, 0.1)
    posterior = make(target, problems.quick(name), to_host(family))
    posterior.save(tmp_path / "run")
    loaded = bl.load(tmp_path / "run")
    assert_same_posterior(posterior, loaded)
    for part in ("prior", "frozen", "frozen_prior"):
        assert_same(getattr(posterior.target, part), getattr(loaded.target, part))


def test_networks_in_double_precision_come_back(tmp_path):
    model = bl.Model(bl.networks.MLP([3]), bl.likelihoods.Gaussian(0.3), dtype="float64")
    _, loaded = check_model(model, tmp_path)
    assert set(loaded.target.dtypes) == {"float64"}


def test_hyper_parameters_that_are_not_the_default_come_back(point, tmp_path):
    algorithm = bl.MCDropout(
        keep=0.8,
        keep_by_layer={"layers.0.*": 0.7},
        optimizer="sgd",
        optimizer_options={"momentum": 0.9},
    )
    dataclasses.replace(point, algorithm=algorithm).save(tmp_path / "run")
    assert bl.load(tmp_path / "run").algorithm == algorithm


def test_functions_among_hyper_parameters_leave_a_mark(point, tmp_path):
    import optax

    posterior = dataclasses.replace(point, algorithm=bl.MAP(optimizer=optax.sgd(0.1)))
    for folder in ("run", "again"):
        posterior.save(tmp_path / folder)
        posterior = bl.load(tmp_path / folder)
        assert "not saved" in repr(posterior.algorithm.optimizer)
        assert_same(predictions(point), predictions(posterior))
    with pytest.raises(StorageError, match=r"optimizer.*was not saved"):
        posterior.algorithm.optimizer()


def test_bare_densities_come_back_without_the_function(tmp_path):
    def log_density(params):
        return -0.5 * jnp.sum(params["a"] ** 2) - params["b"][0] ** 2

    start = {"a": jnp.zeros(2), "b": [jnp.ones(())]}
    target = bl.Target.from_log_density(log_density, start)
    family = families.DiagonalGaussian(start, jax.tree.map(lambda w: w + 0.5, start))
    posterior = make(target, bl.BayesByBackprop(), family)
    posterior.save(tmp_path / "run")
    loaded = bl.load(tmp_path / "run")
    assert_same_posterior(posterior, loaded)
    with pytest.raises(ArgumentError, match="bare log-density"):
        loaded.predict(X)
    with pytest.raises(StorageError, match="the log-density was not saved"):
        bl.fit(loaded.target, "map", seed=0, num_steps=1)


# Networks that are not ours


def own_init(key, x, num_outputs):
    return {"w": jax.random.normal(key, (jnp.size(x), num_outputs))}


def own_apply(params, x):
    return x @ params["w"]


class Own(eqx.Module):
    first: eqx.nn.Linear
    scale: jax.Array

    def __init__(self, key):
        self.first = eqx.nn.Linear(1, 1, key=key)
        self.scale = jnp.ones(())

    def __call__(self, x):
        return jnp.tanh(self.first(x)) * self.scale


OWN = {
    "FunctionNetwork": (own_init, own_apply),
    "EquinoxNetwork": Own(jax.random.key(3)),
    "MLP": bl.networks.MLP([3], activation=jnp.sin),
}


@pytest.mark.parametrize("kind", OWN)
def test_networks_with_functions_are_passed_again(kind, tmp_path):
    posterior = posterior_of("map", bl.Model(OWN[kind], bl.likelihoods.Gaussian()))
    posterior.save(tmp_path / "run")
    with pytest.raises(StorageError, match=rf"its network \({kind}\).*network="):
        bl.load(tmp_path / "run")
    assert_same_posterior(posterior, bl.load(tmp_path / "run", network=OWN[kind]))


def test_another_network_is_refused(point, tmp_path):
    point.save(tmp_path / "run")
    with pytest.raises(StorageError, match=r"layers\.0\.weight has shape \(3, 1\).*\(4, 1\)"):
        bl.load(tmp_path / "run", network=bl.networks.MLP([4]))
    with pytest.raises(StorageError, match=r"called \['layers\.0\.weight'.*network's \['w'\]"):
        bl.load(tmp_path / "run", network=(own_init, own_apply))
    with pytest.raises(ArgumentError, match="`network` must"):
        bl.load(tmp_path / "run", network=3)


def test_own_classes_are_refused_until_registered(point, tmp_path):
    class Mine(families.Point):
        scale: float = 1.0

    posterior = dataclasses.replace(point, family=Mine(point.family.mean, 2.0))
    with pytest.raises(StorageError, match=r"`family` cannot be saved: a Mine .*register"):
        posterior.save(tmp_path / "run")
    assert not list(tmp_path.iterdir())
    registry.register(Mine)
    try:
        posterior.save(tmp_path / "run")
        assert bl.load(tmp_path / "run").family.scale == 2.0
    finally:
        registry.classes.cache_clear()
    with pytest.raises(StorageError, match="Mine', a class that is not known here"):
        bl.load(tmp_path / "run")
    with pytest.raises(ArgumentError, match="`cls` must"):
        registry.register(dict)


# Values


def test_values_come_back_as_they_were(x64):
    values = {
        "plain": [None, True, 3, -0.0, 1e-320, "text"],
        "odd": (float("inf"), float("-inf")),
        "key": jax.random.split(jax.random.key(3), 2),
        "rbg": jax.random.key(3, impl="rbg"),
        "half": jnp.asarray([1.5, 2.5], jnp.bfloat16),
        "scalar": np.float32(0.1),
        "empty": np.zeros((0, 3)),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big endian": np.arange(3, dtype=">i4"),
        "a.b": np.arange(2),
        "a": {"b": np.arange(3)},
        "int keys": {4: jnp.arange(4), 2: 0},
    }
    encoder = codec.Encoder()
    node = json.loads(json.dumps(encoder.encode(values, ""), allow_nan=False))
    decoder = codec.Decoder({n: folders._plain(n, a) for n, a in encoder.arrays.items()})
    found = decoder.decode(node)
    assert not decoder.arrays
    assert list(found) == list(values)
    assert repr(found["plain"]) == repr(values["plain"])
    assert found["odd"] == values["odd"]
    for name in ("key", "rbg"):
        assert jax.random.key_impl(found[name]) == jax.random.key_impl(values[name])
        data = [jax.random.key_data(each[name]) for each in (found, values)]
        np.testing.assert_array_equal(*data)
    assert type(found["scalar"]) is np.float32
    assert found["half"].dtype == jnp.bfloat16
    assert isinstance(found["int keys"][4], jax.Array)
    for name in ("half", "scalar", "empty", "fortran", "big endian", "a.b", "a"):
        for left, right in zip(leaves(found[name]), leaves(values[name]), strict=True):
            assert left.shape == right.shape
            np.testing.assert_array_equal(left, right)
    assert list(found["int keys"]) == [4, 2]


def test_what_is_no_data_is_refused(tmp_path):
    with pytest.raises(StorageError, match=r"`f` cannot be saved: a function"):
        codec.Encoder().encode(lambda: 0, "f")
    for arrays, description in (
        ({"a": np.array([object()])}, {}),
        ({"a": np.array(["text"])}, {}),
        ({"a": np.array([1j])}, {}),
        ({}, {"a": object()}),
        ({}, {"a": float("nan")}),
    ):
        with pytest.raises(StorageError, match="cannot be saved"):
            folders.write_folder(tmp_path / "run", arrays, description)
        assert not list(tmp_path.iterdir())


# Damaged folders


def edit(run, change):
    manifest = json.loads((run / folders.MANIFEST).read_bytes())
    change(manifest)
    (run / folders.MANIFEST).write_bytes(seal(manifest))


def test_a_few_hundred_broken_folders(point, tmp_path):
    """Whatever happens to the bytes: the named error, or the posterior that was saved.

    With checksums made anew the description may say something else that is sound; what is then
    loaded must be able to do its work.
    """
    rng = random.Random(0)
    mean = point.family.mean
    family = families.DiagonalGaussian(mean, jax.tree.map(np.ones_like, mean))
    posterior = dataclasses.replace(point, algorithm=bl.VOGN(), family=family)
    posterior.save(tmp_path / "run")
    manifest = (tmp_path / "run" / folders.MANIFEST).read_bytes()
    arrays = (tmp_path / "run" / folders.ARRAYS).read_bytes()
    messages, num_other = [], 0
    for trial in range(300):
        new_manifest, new_arrays = manifest, arrays
        is_sealed = trial % 2 == 1
        if trial % 4 < 2:
            new_arrays = break_bytes(rng, arrays)
        elif is_sealed:
            parsed = json.loads(manifest)
            break_json(rng, parsed)
            new_manifest = seal(parsed)
        else:
            new_manifest = break_bytes(rng, manifest)
        if is_sealed and new_arrays is not arrays:
            new_manifest = seal(with_checksums(json.loads(manifest), new_arrays))
        (tmp_path / "run" / folders.MANIFEST).write_bytes(new_manifest)
        (tmp_path / "run" / folders.ARRAYS).write_bytes(new_arrays)
        try:
            loaded = bl.load(tmp_path / "run")
        except StorageError as error:
            messages.append(str(error))
            continue
        if not is_sealed:
            assert_same(loaded.family, posterior.family)
            assert loaded.algorithm == posterior.algorithm
        else:
            assert len(loaded.summary()) == len(posterior.summary())
            repr(loaded)
            num_other += 1
    assert all("cannot be loaded: " in text and text.endswith(".") for text in messages)
    assert len(messages) > 150
    assert num_other > 0


def test_a_description_names_no_class_but_those_on_the_list(point, tmp_path):
    point.save(tmp_path / "run")
    for name in ("os.system", "builtins.eval", "storage.NotSaved", "networks._Static"):
        edit(
            tmp_path / "run",
            lambda m, name=name: m["description"]["posterior"]["family"].update(type=name),
        )
        with pytest.raises(StorageError, match=f"it holds a '{name}', a class that is not known"):
            bl.load(tmp_path / "run")
    assert all(cls.__module__.startswith("bayeslearn.") for cls in registry.classes().values())
    assert set(bl.ALGORITHMS.values()) <= set(registry.classes().values())
