"""A frozen body is run once: same results, no weights of it in a step, and no bit of it moved."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn.inference import feature_maps, features, run
from bayeslearn.inference.features import HeadNetwork, with_features

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3)).astype(np.float32)
Y = np.tanh(X @ [1.0, -2.0, 0.5]) + 0.1 * rng.normal(size=60)


class Body(eqx.Module):
    """A convolution, a layer behind `jax.jit`, and a last layer."""

    first: eqx.nn.Conv1d
    hidden: eqx.nn.Linear
    last: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.first = eqx.nn.Conv1d(1, 4, 2, key=keys[0])
        self.hidden = eqx.nn.Linear(8, 5, key=keys[1])
        self.last = eqx.nn.Linear(5, 1, key=keys[2])

    def __call__(self, x):
        h = jax.nn.relu(self.first(x[None])).reshape(-1)
        return jax.jit(lambda w, h: w(jnp.tanh(h)))(self.last, self.hidden(h))


def model(**options):
    return bl.Model(
        Body(jax.random.key(1)),
        bl.likelihoods.Gaussian(noise_scale=0.3),
        bayesian="last.*",
        frozen="given",
        **options,
    )


def bound(partial):
    return partial.freeze(*partial.bind((X, Y), jax.random.key(0)))


def test_the_head_is_the_network_and_has_none_of_the_body(x64):
    target, params = bound(model())
    short, _ = with_features(target, params, None)
    assert isinstance(short.network, HeadNetwork)
    assert [leaf.shape for leaf in jax.tree.leaves(short.data.x)] == [(60, 5)]
    gradient = jax.grad(lambda p, t: t.log_joint(p))
    for left, right in zip(
        jax.tree.leaves(gradient(params, short)),
        jax.tree.leaves(gradient(params, target)),
        strict=True,
    ):
        np.testing.assert_allclose(left, right, rtol=2e-5, atol=1e-5)
    text = str(jax.make_jaxpr(lambda p: short.log_joint(p))(params))
    assert "conv_general" not in text
    assert "conv_general" in str(jax.make_jaxpr(lambda p: target.log_joint(p))(params))


def test_what_cannot_be_divided_is_left_alone(x64):
    def first(frozen_name):
        partial = bl.Model(
            bl.networks.MLP([4]), bl.likelihoods.Gaussian(), bayesian=frozen_name, frozen="given"
        )
        return with_features(*bound(partial), None)

    assert first("layers.0.*") is None  # Bayesian weights from the start
    assert first("*") is None  # nothing is frozen
    assert first("layers.1.*") is not None


CASES = {
    "laplace": {},
    "conjugate": {},
    "emgvb": {"num_steps": 60},
    "vogn": {"num_steps": 60, "batch_size": 20},
}


@pytest.mark.parametrize("name", CASES)
def test_predictions_are_as_without_features_and_the_body_is_the_same_bits(name, monkeypatch):
    options = {"seed": 0, **CASES[name]}
    partial = model()
    found = bl.fit(partial, name, (X, Y), **options)
    assert not isinstance(found.target.network, HeadNetwork)
    _, start = partial.bind((X, Y), jax.random.key(0))
    for part in ("first", "hidden"):
        for kept, given in zip(
            jax.tree.leaves(getattr(found.target.frozen, part)),
            jax.tree.leaves(getattr(start["network"], part)),
            strict=True,
        ):
            np.testing.assert_array_equal(kept, given)
    if name not in ("laplace", "conjugate"):
        return
    monkeypatch.setattr(run, "with_features", lambda *arguments: None)
    slow = bl.fit(partial, name, (X, Y), **options)
    a, b = found.predict(X[:7]), slow.predict(X[:7])
    np.testing.assert_allclose(a.mean, b.mean, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(a.std, b.std, rtol=1e-4)


def test_it_is_saved_updated_and_validated(tmp_path):
    held_out = X[:20], Y[:20]
    found = bl.fit(model(), "vogn", (X, Y), seed=0, num_steps=40, validation=held_out)
    assert np.isfinite(found.trace["eval_validation"]).all()
    found.save(tmp_path / "run")
    loaded = bl.load(tmp_path / "run", Body(jax.random.key(2)))
    np.testing.assert_array_equal(found.predict(X).mean, loaded.predict(X).mean)
    updated = found.update((X[:10], Y[:10]), num_steps=40)
    for a, b in zip(
        jax.tree.leaves(updated.target.frozen), jax.tree.leaves(found.target.frozen), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_it_resumes_to_the_same_bits(tmp_path):
    options = {"seed": 0, "num_steps": 60}
    whole = bl.fit(model(), "vogn", (X, Y), **options)

    def stop(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bl.fit(model(), "vogn", (X, Y), checkpoint=tmp_path / "run", callback=stop, **options)
    resumed = bl.resume(tmp_path / "run", (X, Y), model=model(), callback=False)
    for a, b in zip(jax.tree.leaves(whole.family), jax.tree.leaves(resumed.family), strict=True):
        np.testing.assert_array_equal(a, b)


# Features beyond memory


@pytest.fixture
def small_memory(monkeypatch):
    """No features fit into memory; blocks of 25 rows do not divide 60."""
    monkeypatch.setattr(features, "MAX_BYTES", 0)
    monkeypatch.setattr(feature_maps, "BLOCK", 25)


def test_features_beyond_memory_are_read_from_a_file(small_memory, monkeypatch):
    seen = []
    written = feature_maps._written

    def spy(*arguments):
        seen.append(written(*arguments))
        return seen[-1]

    monkeypatch.setattr(feature_maps, "_written", spy)
    posterior = bl.fit(model(), bl.VOGN(), (X, Y), seed=0, num_steps=400, batch_size=10)
    (maps,) = seen
    assert [isinstance(one, np.memmap) for one in maps] == [True]
    whole = bl.fit(model(), bl.VOGN(), (X, Y), seed=0, num_steps=400, batch_size=60)
    assert any("temporary file" in note for note in posterior.notes)
    assert not any("temporary file" in note for note in whole.notes)
    np.testing.assert_allclose(posterior.predict(X).mean, whole.predict(X).mean, atol=0.2)
    assert len(posterior.training_data()[1]) == 60
    body = jax.tree.leaves(posterior.target.frozen)
    for left, right in zip(body, jax.tree.leaves(whole.target.frozen), strict=True):
        np.testing.assert_array_equal(left, right)


def test_the_file_has_the_features_of_every_row(small_memory, x64):
    target, params = bound(model())
    divided = features.divide(target, params)
    (found,) = feature_maps._written(divided, target.data)
    np.testing.assert_allclose(found, divided.computed(target.data).x[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "rows"), [("laplace", (X, Y)), ("vogn", (X, Y, np.ones(60) + 1))])
def test_where_all_rows_are_needed_the_body_runs_in_every_step(small_memory, name, rows):
    posterior = bl.fit(model(), bl.ALGORITHMS[name](), rows, seed=0, num_steps=20, batch_size=10)
    assert not any("temporary file" in note for note in posterior.notes)


def test_a_run_on_features_in_a_file_is_resumed_to_the_same_bits(small_memory, tmp_path):
    def fit(**options):
        return bl.fit(model(), "vogn", (X, Y), seed=0, num_steps=60, batch_size=10, **options)

    def stop(event):
        if event.step >= 30:
            raise RuntimeError("enough")

    whole = fit()
    folder = bl.Checkpoint(tmp_path / "run", every=10)
    with pytest.raises(RuntimeError, match="enough"):
        fit(checkpoint=folder, callback=stop)
    again = bl.resume(tmp_path / "run", (X, Y), model=model(), callback=False)
    np.testing.assert_array_equal(again.family.mean_vector(), whole.family.mean_vector())
