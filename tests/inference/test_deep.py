"""What deep networks need: learned scales on minibatches, half precision, frozen features."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_digits

import bayeslearn as bl

rng = np.random.default_rng(0)
X = rng.normal(size=(600, 3)).astype(np.float32)
Y = np.tanh(X @ [1.0, -2.0, 0.5]) + 0.1 * rng.normal(size=600)


class Masked(eqx.Module):
    """A network that draws its own masks from its key."""

    first: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self):
        self.first = eqx.nn.Linear(3, 1, key=jax.random.key(0))
        self.dropout = eqx.nn.Dropout(0.5)

    def __call__(self, x, key=None):
        return self.first(self.dropout(x, key=key))


@pytest.mark.parametrize("microbatch", [None, 10])
def test_each_row_has_masks_of_its_own(microbatch, x64):
    """Eight patterns of three masks: 40 equal rows with one output have a chance of 8^-39."""
    same = np.ones((40, 3), np.float32)
    model = bl.Model(Masked(), bl.likelihoods.Gaussian(noise_scale=0.3))
    target, params = model.bind((same, np.zeros(40)), jax.random.key(0))
    target = dataclasses.replace(target, microbatch=microbatch)
    outputs = np.ravel(target.outputs(params, target.data.x, jax.random.key(1)))
    assert len(np.unique(outputs)) > 2
    assert len(np.unique(np.ravel(target.outputs(params, target.data.x)))) == 1


def learned(algorithm, batch_size):
    """Learned prior standard deviations of a network on 600 rows."""
    model = bl.Model(bl.networks.MLP([8]), bl.likelihoods.Gaussian(), bl.priors.Normal(learn=True))
    found = bl.fit(model, algorithm, (X, Y), seed=0, num_steps=1500, batch_size=batch_size)
    prec = found.target.prior.prec["network"]
    scales = np.array([float(np.ravel(leaf)[0]) ** -0.5 for leaf in jax.tree.leaves(prec)])
    return found, scales


@pytest.mark.parametrize("algorithm", [bl.VOGN(), bl.IVON()], ids=["vogn", "ivon"])
def test_prior_scales_are_learned_on_minibatches(algorithm):
    """At the fixed point of the update: s^2 = E_q[w^2], for each leaf; and as on all rows."""
    found, scales = learned(algorithm, 100)
    q, network = found.family, found.family.mean["network"]
    squares = [
        float(np.mean(np.square(m) + np.square(s)))
        for m, s in zip(jax.tree.leaves(network), jax.tree.leaves(q.std["network"]), strict=True)
    ]
    # The scales are updated between rounds, the last of which still moved q by a few per cent.
    np.testing.assert_allclose(scales, np.sqrt(squares), rtol=0.05)
    _, whole = learned(algorithm, 600)
    used = whole > 0.05  # those of leaves that are not needed fall to zero
    np.testing.assert_array_equal(used, scales > 0.05)
    # Only the product of the two layers' scales is that of the function.
    np.testing.assert_allclose(np.prod(scales[used]), np.prod(whole[used]), rtol=0.05)
    assert np.min(scales) < 0.5  # biases are not needed


def test_ivon_in_half_precision_is_close_to_single():
    """The network computes in bfloat16, with 8 bits; q stays in float32."""

    def fit(dtype):
        model = bl.Model(
            bl.networks.MLP([8]), bl.likelihoods.Gaussian(noise_scale=0.3), dtype=dtype
        )
        return bl.fit(model, bl.IVON(), (X, Y), seed=0, num_steps=600)

    half, single = fit("bfloat16"), fit(None)
    assert {leaf.dtype for leaf in jax.tree.leaves(half.family)} == {np.dtype(np.float32)}
    error = [np.sqrt(np.mean((found.predict(X).mean - Y) ** 2)) for found in (half, single)]
    assert error[0] < error[1] + 0.02
    assert half.target.outputs(half.family.mean, jnp.asarray(X[:2], jnp.bfloat16)).shape == (2, 1)


@pytest.fixture(scope="module")
def digits():
    """The digits 0 to 9: rows to learn from, others, and a network that was trained on them."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16.0).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:1400], order[1400:]
    model = bl.Model(bl.networks.MLP([8]), bl.likelihoods.Categorical())
    body = bl.fit(model, bl.MAP(), (x[train], y[train]), seed=0, num_steps=300)
    last = bl.Model(
        bl.networks.MLP([8]),
        bl.likelihoods.Categorical(),
        bl.priors.Normal.fan_in(1.0),
        bayesian="layers.1.*",
        frozen="given",
    )
    return last, body.family.mean, (x[train], y[train]), x[test]


@pytest.mark.slow(reason="HMC and EMGVB on 90 weights and 1,400 rows")
def test_last_layers_of_a_frozen_body_agree(digits):
    """In mean total variation over 397 held-out digits.

    Laplace's part of it is its own error, .009 here; EMGVB and HMC differ by .002, half of which is
    the Monte-Carlo error of 1,000 draws.
    """
    model, init, data, new = digits
    algorithms = {
        "laplace": (bl.Laplace(), {}),
        "emgvb": (bl.EMGVB(gradient="reparam"), {"num_steps": 1500}),
        "hmc": (bl.HMC(num_warmup=500, num_samples=500), {"num_chains": 2}),
    }
    found = {}
    for name, (algorithm, options) in algorithms.items():
        posterior = bl.fit(model, algorithm, data, seed=0, init=init, **options)
        assert posterior.family.mean["network"]["layers"][0].weight is None
        found[name] = np.asarray(posterior.predict(new, num_samples=1000).probs)
    for a, b in (("laplace", "emgvb"), ("emgvb", "hmc"), ("laplace", "hmc")):
        distance = np.mean(0.5 * np.sum(np.abs(found[a] - found[b]), axis=1))
        assert distance < 0.01, (a, b, distance)
