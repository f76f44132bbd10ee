"""Noise on activations and by signs: each row has the law of a weight draw, with less variance."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.errors import ArgumentError
from bayeslearn.families import DiagonalGaussian
from bayeslearn.gradients import local, noise

KEYS = jax.random.split(jax.random.key(2), 4000)
ROWS = 12


def columns(number, *shape):
    return np.random.default_rng(number).normal(size=shape)


def bind(network, x, y, noise_scale=None):
    model = bl.Model(network, bl.likelihoods.Gaussian(noise_scale=noise_scale), dtype="float64")
    return model.bind((x, y), jax.random.key(0))


@pytest.fixture
def linear(x64):
    problem = problems.regression()
    return problem.model.bind((problem.x, problem.y), jax.random.key(0))


@pytest.fixture
def network(x64):
    x = columns(0, ROWS, 3)
    return bind(bl.networks.MLP([4]), x, np.sin(2 * x[:, 0]) + 0.5 * columns(1, ROWS), 0.5)


def plain(**options):
    """One draw, and a step that shows the gradient."""
    fixed = {"optimizer": "sgd", "learning_rate": 1.0, "power": 0.0, "kl": "closed-form"}
    return bl.BayesByBackprop(**({"num_draws": 1} | fixed | options))


def std_like(params, scale):
    """Standard deviations that differ from weight to weight."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda w: jnp.asarray(scale * rng.uniform(0.5, 1.5, w.shape)), params)


def zeta_of(params, scale):
    rho = jax.tree.map(lambda s: s + jnp.log(-jnp.expm1(-s)), std_like(params, scale))
    return {"mean": params, "rho": rho}


@jax.jit
def gradients(algorithm, target, zeta, keys):
    """Of -elbo / num_data in the means and the rhos, one row for each key."""

    def change(key):
        new, _ = algorithm.step(key, target, algorithm._begin(zeta), target.data)
        return tree.ravel(jax.tree.map(jnp.subtract, zeta, new.zeta))

    return jax.vmap(change)(keys)


@pytest.mark.parametrize("problem", ["linear", "network"])
def test_the_expected_gradient_is_that_of_weight_draws_and_its_variance_smaller(problem, request):
    """4.5 standard errors for each of 8 and 42 numbers, twice: a false alarm in 1400 seeds."""
    target, params = request.getfixturevalue(problem)
    zeta = zeta_of(params, 0.3)
    by_weights = gradients(plain(), target, zeta, KEYS)
    for kind in ("local", "flipout"):
        found = gradients(plain(perturb=kind), target, zeta, KEYS)
        errors = np.sqrt((by_weights.var(0) + found.var(0)) / len(KEYS))
        assert np.all(np.abs(found.mean(0) - by_weights.mean(0)) < 4.5 * errors)
        assert found.var(0).sum() < by_weights.var(0).sum() / 2


def test_at_a_std_of_zero_it_is_the_gradient_at_the_mean(network):
    target, params = network
    zeta, size = zeta_of(params, 1e-13), tree.size(params)
    exact = jax.jit(jax.grad(lambda p: -target.log_joint(p) / target.num_data))(params)
    wanted = np.broadcast_to(tree.ravel(exact), (len(KEYS), size))
    for kind in local.KINDS:
        found = np.asarray(gradients(plain(perturb=kind), target, zeta, KEYS))[:, :size]
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)


def drawn(target, params, kind, num, scale=0.3):
    """q, the rewritten network, `num` draws of noise, and what the network makes of each."""
    q = DiagonalGaussian(params, std_like(params, scale))
    made = local.perturbation(target, params, None, kind)
    normals = noise.normal_like(jax.random.key(3), made.noise, num)
    outputs = jax.jit(jax.vmap(lambda e: made.target.outputs(*made.inputs(q, e))))(normals)
    return q, made, normals, np.asarray(outputs)


@pytest.mark.parametrize("kind", ["local", "flipout"])
def test_rows_are_uncorrelated_draws_with_the_moments_of_x_w(x64, kind):
    """5 standard errors for each of 16 moments and 24 products, twice: one in 20,000 seeds."""
    x, num = columns(0, 4, 3), 5000
    target, params = bind(bl.networks.MLP([]), x, columns(1, 4, 2))
    q, _, _, outputs = drawn(target, params, kind, num)
    layer, stds = params["network"]["layers"][0], q.std["network"]["layers"][0]
    mean = x @ np.asarray(layer.weight).T + np.asarray(layer.bias)
    std = np.sqrt(x**2 @ np.asarray(stds.weight**2).T + np.asarray(stds.bias**2))
    z = (outputs - mean) / std
    assert np.all(np.abs(z.mean(0)) < 5 / num**0.5)
    fourth = (z**2).std(0)
    assert np.all(np.abs((z**2).mean(0) - 1) < 5 * fourth / num**0.5)
    products = z.reshape(num, 4, 1, 2, 1) * z.reshape(num, 1, 4, 1, 2)
    errors = products.std(0) / num**0.5
    pairs = np.triu_indices(4, 1)
    assert np.all(np.abs(products.mean(0))[pairs] < 5 * errors[pairs])


def test_activations_are_drawn_as_the_formula_says(network):
    target, params = network
    q, made, normals, outputs = drawn(target, params, "local", 2)
    assert [role.kind for role in made.roles] == ["local", "own"] * 2
    assert made.has_one_network
    h = np.asarray(target.data.x)
    for i, layer in enumerate(params["network"]["layers"]):
        std = q.std["network"]["layers"][i]
        e, e_bias = (np.asarray(normals["rows"][2 * i + j][0][1]) for j in (0, 1))
        h = np.tanh(h) if i else h
        product = h @ np.asarray(layer.weight).T + np.sqrt(h**2 @ np.asarray(std.weight.T) ** 2) * e
        h = product + np.asarray(layer.bias) + np.asarray(std.bias) * e_bias
    np.testing.assert_allclose(outputs[1], h, rtol=1e-12)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (bl.networks.GRU(hidden=(3,)), (5, 2)),
        (bl.networks.CNN(filters=(3,), hidden=(4,)), (2, 6, 5)),
    ],
)
def test_flipout_gives_each_row_weights_of_its_own(x64, module, shape):
    """M + (S eps) r s^T, the same at every position and time of a row."""
    target, params = bind(module, columns(0, ROWS, *shape), columns(1, ROWS))
    q, made, normals, outputs = drawn(target, params, "flipout", 1)
    e = jax.tree.map(lambda leaf: leaf[0], normals)
    leaves, treedef = jax.tree.flatten(params["network"])
    weights = []
    for i, (mean, std) in enumerate(zip(leaves, jax.tree.leaves(q.std["network"]), strict=True)):
        kind, of_row = made.roles[i].kind, e["rows"][i]
        if kind == "own":
            weights.append(mean + std * of_row[0])
            continue
        assert kind == "flipout"
        of_in, of_out = (jnp.sign(n).reshape(ROWS, -1) for n in of_row)  # leaves are (out, in, ...)
        signs = of_out[:, :, None] * of_in[:, None, :]
        signs = signs.reshape(*signs.shape, *[1] * (mean.ndim - 2))
        weights.append(mean + std * e["weights"][i] * signs)
    own = jax.tree.unflatten(treedef, weights)
    wanted = jax.jit(jax.vmap(target.row_outputs))(own, target.data.x)
    np.testing.assert_allclose(outputs[0], wanted, rtol=1e-10, atol=1e-12)


class Odd(eqx.Module):
    """A matrix used twice, one that is changed first, one shared by positions, and a dense one."""

    def init(self, key, x_example, num_outputs):
        shapes = {"tied": (3, 3), "changed": (3, 3), "along": (3, 2), "dense": (2, num_outputs)}
        return {k: 0.1 + 0.1 * columns(i, *shapes[k]) for i, k in enumerate(shapes)}

    def apply(self, params, x, key=None):
        h = jnp.tanh(jnp.tanh(x @ params["tied"]) @ params["tied"]) @ params["changed"] ** 2
        return (
            jnp.sum(jnp.tanh(h.reshape(1, 3) * x[:, None] @ params["along"]), 0) @ params["dense"]
        )


@pytest.fixture
def odd(x64):
    return bind(Odd(), columns(0, ROWS, 3), columns(1, ROWS))


def test_leaves_without_a_rule_are_named(odd):
    assert local.shared(*odd, "local") == ["along", "changed", "tied"]
    assert local.shared(*odd, "flipout") == ["changed", "tied"]
    (note,) = bl.BayesByBackprop(perturb="flipout").run_notes(*odd)
    assert "same draw of changed, tied:" in note
    assert not bl.BayesByBackprop().run_notes(*odd)


def test_leaves_without_a_rule_have_the_expected_gradient_too(odd):
    """With a learned noise scale, which is one draw for all rows. 54 numbers: one in 2700 seeds."""
    target, params = odd
    zeta = zeta_of(params, 0.2)
    by_weights, found = (
        np.asarray(gradients(plain(perturb=kind), target, zeta, KEYS))
        for kind in ("weights", "local")
    )
    errors = np.sqrt((by_weights.var(0) + found.var(0)) / len(KEYS))
    assert np.all(np.abs(found.mean(0) - by_weights.mean(0)) < 4.5 * errors)


def test_inputs_of_zero_have_a_gradient(network):
    target, params = network
    still = eqx.tree_at(lambda t: t.data.x, target, jnp.zeros_like(target.data.x))
    found = gradients(plain(perturb="local"), still, zeta_of(params, 0.3), KEYS)
    assert np.all(np.isfinite(found))


def test_several_draws_at_once_are_the_mean_of_each(network):
    """Four draws as more rows, beside the mean of the gradients of each."""
    target, params = network
    zeta = zeta_of(params, 0.3)
    several = plain(perturb="local", num_draws=4)
    found = gradients(several, target, zeta, KEYS[:1])[0]
    made = local.perturbation(target, params, None, "local")
    seeds, of_seed = noise.draws_like(jax.random.split(KEYS[0])[0], made.noise, 2)

    def cost(zeta, e):
        q = several.family(zeta)
        bound = made.scaled_log_likelihood(q, e) - q.kl(target.prior)
        return -bound / target.num_data

    @jax.jit
    def wanted(zeta):
        each = [of_seed(seeds[i]) for i in (0, 1)]
        each += [jax.tree.map(jnp.negative, e) for e in each]
        return sum(tree.ravel(jax.grad(cost)(zeta, e)) for e in each) / 4

    np.testing.assert_allclose(found, wanted(zeta), rtol=1e-9, atol=1e-12)


def test_fits_reach_the_diagonal_optimum():
    problem = problems.regression()
    for kind in ("local", "flipout"):
        algorithm = bl.BayesByBackprop(perturb=kind)
        q = bl.fit(problem.model, algorithm, (problem.x, problem.y), seed=0, num_steps=2000).family
        std = np.diag(problem.prec) ** -0.5
        assert np.all(np.abs(q.mean_vector() - problem.mean) < 0.05 * std)
        assert np.all(np.abs(np.sqrt(np.diag(q.cov_matrix())) / std - 1) < 0.05)


def test_what_it_cannot_serve_is_refused(x64):
    x, y = columns(0, ROWS, 3), columns(1, ROWS)
    with pytest.raises(ArgumentError, match='`kl` must be "closed-form" with perturb="local"'):
        bl.BayesByBackprop(perturb="local", kl="sampled")
    with pytest.raises(ArgumentError, match='`perturb` must be "weights" with a `q`'):
        bl.BayesByBackprop(perturb="local", q=lambda params: params)
    laplace = bl.Model(bl.networks.MLP([2]), bl.likelihoods.Gaussian(), bl.priors.Laplace(1.0))
    with pytest.raises(ArgumentError, match='be Gaussian for bayes-by-backprop with perturb="loc'):
        bl.fit(laplace, bl.BayesByBackprop(perturb="local"), (x, y), seed=0)
    density = bl.Target.from_log_density(lambda w: -(w**2), jnp.ones(()))
    with pytest.raises(ArgumentError, match="for a density without a network"):
        bl.fit(density, bl.BayesByBackprop(perturb="flipout"), seed=0)


@pytest.mark.slow(reason="fits of a network to convergence")
@pytest.mark.parametrize("kind", ["local", "flipout"])
def test_fits_in_single_precision_of_some_leaves_in_pieces_of_a_batch(kind):
    """As with weight draws: the lower bounds agree to 0.1 nats a row."""
    x, y = problems.wiggle()
    bounds = {}
    for perturb in ("weights", kind):
        model = bl.Model(
            bl.networks.MLP([8, 4]),
            bl.likelihoods.Gaussian(),
            bayesian=["layers.0.*", "layers.2.*"],
            frozen="joint",
        )
        posterior = bl.fit(
            model,
            bl.BayesByBackprop(perturb=perturb),
            (x, y),
            seed=0,
            num_steps=600,
            batch_size=40,
            options=bl.FitOptions(microbatch=20),
        )
        bounds[perturb] = float(posterior.elbo)
        assert not any("same draw" in note for note in posterior.notes)
    assert abs(bounds[kind] - bounds["weights"]) < 0.1 * len(y)
