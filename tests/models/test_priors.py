"""Priors: densities, the fan-in rule, correlations, learned scales, and who takes which."""

from __future__ import annotations

import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
import scipy.optimize
import scipy.stats

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.errors import ArgumentError
from bayeslearn.families import BlockGaussian, DiagonalGaussian, FullGaussian, Point
from bayeslearn.gradients import whitened
from bayeslearn.inference.arguments import check_suits
from bayeslearn.models.priors import correlated, gaussian

NAMES = problems.STEPPING


def weights(key=0, dtype=jnp.float64):
    """Parameters of a model: a matrix and a bias, and a log noise scale."""
    a, b, c = jax.random.split(jax.random.key(key), 3)
    return {
        "likelihood": {"log_noise_scale": jax.random.normal(c, (1,), dtype)},
        "network": {
            "bias": jax.random.normal(a, (3,), dtype),
            "weight": jax.random.normal(b, (3, 2), dtype),
        },
    }


def own_prior():
    return gaussian.GaussianPrior(
        {"log_noise_scale": jnp.array([0.3])}, {"log_noise_scale": jnp.array([4.0])}
    )


def own_density(params):
    return scipy.stats.norm(0.3, 0.5).logpdf(params["likelihood"]["log_noise_scale"]).sum()


def spd(size, seed=0):
    root = np.random.default_rng(seed).normal(size=(size, size))
    return root @ root.T + 0.5 * np.eye(size)


def bound(prior, params):
    return prior.bind(params["network"]).join(own_prior())


# Densities


def test_laplace_density(x64):
    params = weights()
    found = bound(bl.priors.Laplace(0.1, {"bias": 2.0, "*": 0.5}), params).log_prob(params)
    network = params["network"]
    wanted = scipy.stats.laplace(0.1, 2.0).logpdf(network["bias"]).sum()
    wanted += scipy.stats.laplace(0.1, 0.5).logpdf(network["weight"]).sum()
    np.testing.assert_allclose(found, wanted + own_density(params), rtol=1e-12)


def test_scale_mixture_density_also_far_out(x64):
    params = weights()
    params["network"]["bias"] = jnp.array([1e-4, -40.0, 0.0])
    prior = bl.priors.ScaleMixture((1.0, 0.0025, 3.0), (0.25, 0.5, 0.25))
    flat = np.asarray(tree.ravel(params["network"]))[:, None]
    parts = scipy.stats.norm(0.0, [1.0, 0.0025, 3.0]).logpdf(flat)
    wanted = scipy.special.logsumexp(parts, b=[0.25, 0.5, 0.25], axis=1).sum()
    found = bound(prior, params).log_prob(params)
    np.testing.assert_allclose(found, wanted + own_density(params), rtol=1e-12)


@pytest.mark.parametrize("argument", ["cov", "prec"])
def test_full_density_in_ravel_order(x64, argument):
    params, matrix = weights(), spd(9)
    mean = np.linspace(-1.0, 1.0, 9)
    prior = bound(bl.priors.Normal(mean, **{argument: matrix}), params)
    cov = matrix if argument == "cov" else np.linalg.inv(matrix)
    vector = np.asarray(tree.ravel(params["network"]))
    wanted = scipy.stats.multivariate_normal(mean, cov).logpdf(vector) + own_density(params)
    np.testing.assert_allclose(prior.log_prob(params), wanted, rtol=1e-10)
    terms = prior.log_prob_terms(params)
    assert jax.tree.structure(terms) == jax.tree.structure(params)


def test_low_rank_is_the_dense_gaussian(x64):
    params = weights()
    rng = np.random.default_rng(1)
    variance, factor = rng.uniform(0.5, 2.0, 10), rng.normal(size=(10, 3))
    mean = weights(5)
    low = correlated.LowRankPrior.from_factor(mean, jnp.asarray(variance), jnp.asarray(factor))
    cov = np.diag(variance) + factor @ factor.T
    dense = FullGaussian.from_cov(mean, cov).to_prior()
    vector, centre = (np.asarray(tree.ravel(p)) for p in (params, mean))
    wanted = scipy.stats.multivariate_normal(centre, cov).logpdf(vector)
    np.testing.assert_allclose(low.log_prob(params), wanted, rtol=1e-10)
    groups = ((2, 0), (1,))
    for found, other in zip(
        low.prec_blocks(params, groups), dense.prec_blocks(params, groups), strict=True
    ):
        np.testing.assert_allclose(found, other, atol=1e-10)
    for left, right in zip(
        jax.tree.leaves(low.conditional(params)),
        jax.tree.leaves(dense.conditional(params)),
        strict=True,
    ):
        np.testing.assert_allclose(left, right, atol=1e-10)


def test_conditional_is_the_gaussian_of_a_weight_given_the_others(x64):
    params, cov = weights(), spd(10, 3)
    mean = weights(5)
    prior = FullGaussian.from_cov(mean, cov).to_prior()
    found_mean, found_prec = (np.asarray(tree.ravel(t)) for t in prior.conditional(params))
    away = np.asarray(tree.ravel(params) - tree.ravel(mean))
    for i in (0, 4, 9):
        rest = np.delete(np.arange(10), i)
        regression = np.linalg.solve(cov[np.ix_(rest, rest)], cov[rest, i])
        np.testing.assert_allclose(found_prec[i], 1.0 / (cov[i, i] - cov[i, rest] @ regression))
        wanted = np.asarray(tree.ravel(mean))[i] + regression @ away[rest]
        np.testing.assert_allclose(found_mean[i], wanted)


@pytest.mark.parametrize("kind", ["laplace", "mixture", "full"])
def test_draws_of_a_prior_have_its_moments(x64, kind):
    """Failure rate about 1e-4: 20 numbers, each within 4.5 standard errors."""
    params = weights()
    prior = {
        "laplace": bl.priors.Laplace(0.5, 0.7),
        "mixture": bl.priors.ScaleMixture((2.0, 0.5), (0.3, 0.7)),
        "full": bl.priors.Normal(cov=spd(9)),
    }[kind]
    prior = bound(prior, params)
    keys = jax.random.split(jax.random.key(0), 20_000)
    draws = np.asarray(jax.vmap(lambda k: tree.ravel(prior.sample(k, params)))(keys))
    if kind == "full":
        mean, var = np.zeros(9), np.diag(spd(9))
    else:
        mean, prec = (np.asarray(tree.ravel(t)) for t in prior.broadcast(params))
        mean, var = mean[1:], 1.0 / prec[1:]
    found = draws[:, 1:]
    error = np.sqrt(var / len(draws))
    assert np.all(np.abs(found.mean(0) - mean) < 4.5 * error)
    squares = (found - mean) ** 2
    error = squares.std(0) / np.sqrt(len(draws))
    assert np.all(np.abs(squares.mean(0) - var) < 4.5 * error)


# Fan-in


def test_fan_in_rule(x64):
    params = {
        "conv": {"weight": jnp.zeros((8, 3, 5, 5)), "bias": jnp.zeros((8, 1, 1))},
        "dense": {"weight": jnp.zeros((7, 4)), "bias": jnp.zeros(7)},
        "flax": {"kernel": jnp.zeros((4, 7))},
        "flax_conv": {"kernel": jnp.zeros((5, 5, 3, 8))},
        "attention": {
            "query": {"kernel": jnp.zeros((16, 2, 8))},
            "out": {"kernel": jnp.zeros((2, 8, 16))},
        },
        "norm": jnp.zeros(7),
    }
    prec = bl.priors.Normal.fan_in(gain=2.0).bind(params).prec
    scale = jax.tree.map(lambda p: float(1.0 / np.sqrt(p)), prec)
    np.testing.assert_allclose(scale["conv"]["weight"], 2.0 / np.sqrt(75))
    np.testing.assert_allclose(scale["conv"]["bias"], 2.0)
    np.testing.assert_allclose(scale["dense"]["weight"], 1.0)
    np.testing.assert_allclose(scale["dense"]["bias"], 2.0)
    np.testing.assert_allclose(scale["flax"]["kernel"], 1.0)
    np.testing.assert_allclose(scale["flax_conv"]["kernel"], 2.0 / np.sqrt(75))
    np.testing.assert_allclose(scale["attention"]["query"]["kernel"], 0.5)
    np.testing.assert_allclose(scale["attention"]["out"]["kernel"], 0.5)
    np.testing.assert_allclose(scale["norm"], 2.0)


@pytest.mark.parametrize("width", [99, 100])
def test_the_default_prior_depends_on_the_size(width, x64):
    """10,000 and 10,099 weights; a part of a large network has the prior of the whole."""
    x, y = np.zeros((3, width), np.float32), np.zeros(3)
    model = bl.Model(bl.networks.MLP([99]), bl.likelihoods.Gaussian(0.1), bayesian="layers.1.*")
    target, params = model.bind((x, y), jax.random.key(0))
    frozen, _ = model.freeze(target, params)
    is_large = tree.size(params) > 10_000
    assert is_large == (width == 100)
    for bound in (target, frozen):
        prec = bound.prior.prec["network"]["layers"][1].weight
        np.testing.assert_allclose(prec, 99 / 9 if is_large else 1.0)


def test_fan_in_keeps_the_variance_of_outputs_at_any_width(x64):
    """Prior predictive variance of a linear layer on unit inputs: gain^2 (1 + 1), any width."""
    for width in (3, 300):
        model = bl.Model(
            bl.networks.MLP([]), bl.likelihoods.Gaussian(0.1), bl.priors.Normal.fan_in()
        )
        target, params = model.bind((np.ones((2, width)), np.ones(2)), jax.random.key(0))
        keys = jax.random.split(jax.random.key(1), 4000)
        outputs = jax.vmap(lambda k, t=target, p=params: t.outputs(t.prior.sample(k, p), t.data.x))
        variance = np.var(np.asarray(outputs(keys))[:, 0, 0])
        assert abs(variance - 2.0) < 4.5 * 2.0 * np.sqrt(2 / 4000)  # standard error of a variance


# Correlated priors in the parts


FAMILIES = {
    "diagonal": lambda mean: DiagonalGaussian(mean, jax.tree.map(lambda w: 0.3 + w**2, mean)),
    "block": lambda mean: BlockGaussian(
        mean, (jnp.asarray(spd(4, 8)), jnp.asarray(spd(6, 9))), ((1, 0), (2,))
    ),
    "full": lambda mean: FullGaussian(mean, jnp.asarray(spd(10, 7))),
}
PRIORS = {
    "full": lambda: FullGaussian.from_cov(weights(5), spd(10, 3)).to_prior(),
    "block": lambda: BlockGaussian(
        weights(5), (jnp.asarray(spd(1)), jnp.asarray(spd(9))), ((0,), (1, 2))
    ).to_prior(),
    "low-rank": lambda: correlated.LowRankPrior.from_factor(
        weights(5), jnp.linspace(0.5, 2.0, 10), jnp.asarray(spd(10)[:, :2])
    ),
}


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("family", FAMILIES)
def test_divergence_from_a_correlated_prior(x64, family, prior):
    q, p = FAMILIES[family](weights()), PRIORS[prior]()
    prec = np.asarray(p.prec_blocks(q.mean, ((0, 1, 2),))[0])
    away = np.asarray(tree.ravel(q.mean) - tree.ravel(p.mean))
    cov = np.asarray(q.cov_matrix())
    wanted = 0.5 * (np.trace(prec @ cov) + away @ prec @ away - 10)
    wanted -= 0.5 * (np.linalg.slogdet(prec)[1] + np.linalg.slogdet(cov)[1])
    np.testing.assert_allclose(q.kl(p), wanted, rtol=1e-9)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("covariance", ["diagonal", "block", "full"])
def test_prior_and_entropy_are_the_gradient_of_the_divergence(x64, covariance, prior):
    """In the frame: C^T grad_mean(-KL), and C^T grad_cov(-KL) C along one direction."""
    from bayeslearn.algorithms.gaussian import frame_from, to_family

    q = FAMILIES["diagonal"](weights())
    frame = frame_from(q, covariance, {"a": ["*.bias", "like*"], "b": ["*.weight"]})

    p = PRIORS[prior]()
    target = types.SimpleNamespace(prior=p, log_prior=p.log_prob)
    zeros = jax.tree.map(jnp.zeros_like, frame.noise(jax.random.key(0), 2))
    none = jax.tree.map(lambda e: e[0], zeros)
    mean, cov = whitened._add_prior_and_entropy(target, frame, none, frame.outer(zeros, zeros))

    def bound_of(step, h):
        """-KL with the mean moved by C step, and the factor C (I + h A)."""
        moved = eqx.tree_at(lambda f: f.mean, frame, frame.draw(step))
        if covariance == "diagonal":
            factors = jax.tree.map(lambda c, a: c * (1.0 + h * a), frame.std, direction)
            moved = eqx.tree_at(lambda f: f.std, moved, factors)
        else:
            factors = tuple(
                c + h * c @ (a + a.T) for c, a in zip(frame.factors, direction, strict=True)
            )
            moved = eqx.tree_at(lambda f: f.factors, moved, factors)
        return -to_family(moved, covariance).kl(p)

    whole = frame.dense(cov)
    direction = tree.unraveler(whole)(jnp.sin(jnp.arange(tree.size(whole)) * 1.0))
    wanted = jax.grad(bound_of)(none, 0.0)
    np.testing.assert_allclose(tree.ravel(mean), tree.ravel(wanted), rtol=1e-9, atol=1e-9)
    # d cov = C (A + A^T) C^T, so that the slope is 2 <G, A> for a symmetric A
    moves = jax.tree.map(lambda a: a if covariance == "diagonal" else a + a.T, direction)
    slope = 2.0 * tree.total(jax.tree.map(jnp.multiply, whole, moves))
    np.testing.assert_allclose(jax.grad(bound_of, 1)(none, 0.0), slope, rtol=1e-9)


DENSE_BRANCHES = [
    ("vogn", {}),
    ("vadam", {}),
    ("ivon", {}),
    ("bayes-by-backprop", {"kl": "closed-form"}),
    ("ngvi", {"gradient": "gauss-newton"}),
    ("ngvi", {"gradient": "gauss-newton", "covariance": "diagonal"}),
    ("von", {}),
    ("qbvi", {"gradient": "score", "form": "log-likelihood"}),
    ("mgvb", {"gradient": "score", "form": "log-likelihood"}),
    ("emgvb", {"gradient": "score", "form": "log-likelihood", "covariance": "diagonal"}),
    ("bbvi", {}),
    ("laplace", {}),
    ("conjugate", {}),
]


@pytest.mark.parametrize(("name", "options"), DENSE_BRANCHES)
def test_a_full_prior_with_a_diagonal_matrix_is_the_diagonal_prior(x64, name, options):
    problem = problems.regression()
    scales, algorithm = np.array([0.5, 1.0, 2.0, 0.8]), bl.ALGORITHMS[name](**options)
    found = []
    for prior in (bl.priors.Normal(0.1, cov=np.diag(scales**2)), bl.priors.Normal(0.1, scales)):
        if prior.cov is None:
            prior = bl.priors.Normal(0.1, {"*": scales[None]})
        model = bl.Model(problem.model.network, problem.model.likelihood, prior, dtype="float64")
        target, params = model.bind((problem.x, problem.y), jax.random.key(0))

        @jax.jit
        def run(target, params):
            state = algorithm.init(jax.random.key(1), target, params)
            for t in range(2):
                state, _ = algorithm.step(jax.random.key(t), target, state, target.data)
            return algorithm.approximation(target, state)

        q = run(target, params)
        found.append((q.mean_vector(), q.cov_matrix()))
    for left, right in zip(*found, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-8, atol=1e-10)


ONE = {"gradient": "hessian", "learning_rate": 1.0, "power": 0.0, "guards": False, "num_draws": 2}


@pytest.mark.parametrize(
    ("algorithm", "steps"),
    [
        (bl.Conjugate(), 1),
        (bl.NGVI(**ONE), 2),
        (bl.VON(**ONE), 2),
        (bl.QBVI(**ONE), 2),
        (bl.EMGVB(**ONE), 30),
        (bl.Laplace(), 1),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_linear_regression_with_a_full_prior_is_solved_exactly(algorithm, steps):
    """One step finds the precision, after which gradients have no noise: the next finds the mean.
    A retraction is a Newton step on the precision, and takes a few more."""
    problem = problems.regression()
    cov, mean = spd(4), np.array([1.0, -1.0, 0.5, 0.0])
    model = bl.Model(
        problem.model.network,
        problem.model.likelihood,
        bl.priors.Normal(mean, cov=cov),
        dtype="float64",
    )
    prior = np.linalg.inv(cov)
    prec = prior + problem.x.T @ problem.x / 0.7**2
    wanted = np.linalg.solve(prec, prior @ mean + problem.x.T @ problem.y / 0.7**2)
    start = {
        "likelihood": {},
        "network": model.bind((problem.x, problem.y), jax.random.key(0))[1]["network"],
    }
    q = FullGaussian.from_std(start, 0.1)
    posterior = bl.fit(model, algorithm, (problem.x, problem.y), seed=0, num_steps=steps, init=q)
    np.testing.assert_allclose(posterior.family.mean_vector(), wanted, atol=1e-8)
    np.testing.assert_allclose(posterior.family.prec_matrix(), prec, rtol=1e-7)
    cov_y = 0.49 * np.eye(60) + problem.x @ cov @ problem.x.T
    evidence = scipy.stats.multivariate_normal(problem.x @ mean, cov_y).logpdf(problem.y)
    np.testing.assert_allclose(posterior.elbo, evidence, rtol=1e-8)


# Learned scales


def learned_model():
    return bl.Model(
        bl.networks.MLP([]),
        bl.likelihoods.Gaussian(noise_scale=0.7),
        bl.priors.Normal(scale={"*.weight": 3.0, "*": 0.5}, learn=True),
        dtype="float64",
    )


@pytest.fixture(scope="module")
def best_scales():
    """Scales of weights and bias at the top of the exact evidence."""
    problem = problems.regression()
    y = problem.y + 2.0

    def minus_evidence(log_scales):
        weight, bias = np.exp(2 * np.asarray(log_scales))
        cov = weight * problem.x @ problem.x.T + bias + 0.49 * np.eye(60)
        return -scipy.stats.multivariate_normal(np.zeros(60), cov).logpdf(y)

    found = scipy.optimize.minimize(
        minus_evidence, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12}
    )
    return (problem.x, y), np.exp(found.x)


@pytest.mark.parametrize(
    ("algorithm", "steps"),
    [(bl.NGVI(**ONE), 80), (bl.Laplace(), 1)],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_learned_scales_are_at_the_top_of_the_evidence(best_scales, algorithm, steps):
    data, wanted = best_scales
    posterior = bl.fit(
        learned_model(),
        algorithm,
        data,
        seed=0,
        num_steps=steps,
        options=bl.FitOptions(eval_every=2),
    )
    prec = posterior.target.prior.prec["network"]
    found = [float(p) ** -0.5 for p in (prec["layers"][0].weight, prec["layers"][0].bias)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_learned_scales_keep_their_pattern_and_a_floor(x64):
    params = weights()
    pattern = {"weight": jnp.array([[1.0, 2.0]]), "bias": 1.0}
    prior = bound(bl.priors.Normal(0.0, pattern, learn=True), params)
    q = DiagonalGaussian(params, jax.tree.map(lambda w: 0.1 + w**2, params))
    new = prior.refresh(None, q, jax.random.key(0))
    second = jax.tree.map(lambda m, s: m**2 + s**2, q.mean, q.std)["network"]
    np.testing.assert_allclose(1.0 / new.prec["network"]["bias"], jnp.mean(second["bias"]))
    factor = jnp.mean(second["weight"] / pattern["weight"] ** 2)
    np.testing.assert_allclose(1.0 / new.prec["network"]["weight"], factor * pattern["weight"] ** 2)
    np.testing.assert_array_equal(new.prec["likelihood"]["log_noise_scale"], [4.0])
    still = new.refresh(None, DiagonalGaussian(q.mean, q.std), jax.random.key(0))
    np.testing.assert_allclose(tree.ravel(still.prec), tree.ravel(new.prec), rtol=1e-12)
    at_zero = jax.tree.map(jnp.zeros_like, params)
    flat = prior.refresh(
        None, DiagonalGaussian(at_zero, jax.tree.map(lambda w: w + 1e-9, at_zero)), None
    )
    np.testing.assert_allclose(flat.prec["network"]["bias"], gaussian.MIN_SCALE**-2)
    assert prior.refresh(None, Point(params), jax.random.key(0)) is prior


# Who takes which

EVERY_KIND = {
    "fan-in": lambda k: bl.priors.Normal.fan_in(),
    "full": lambda k: bl.priors.Normal(cov=0.5 * np.eye(k) + 0.5),
    "mixture": lambda k: bl.priors.ScaleMixture(),
    "laplace": lambda k: bl.priors.Laplace(),
    "hierarchical": lambda k: bl.priors.Hierarchical(),
    "learned": lambda k: bl.priors.Normal(learn=True),
}
SAMPLERS = {n for n in NAMES if bl.ALGORITHMS[n].capabilities.is_sampler}
GAUSSIAN_ONLY = {
    *("vogn", "vadam", "ivon", "von", "laplace", "mc-dropout", "conjugate", "noisy-kfac"),
}
REFUSES = {
    "full": {"mc-dropout", "noisy-kfac"},
    "mixture": GAUSSIAN_ONLY,
    "laplace": GAUSSIAN_ONLY,
    "hierarchical": {"map", "swag", *GAUSSIAN_ONLY},
    "learned": {"map", "swag", "sghmc", "mc-dropout", "conjugate", *SAMPLERS},
}


def model_with(name, kind):
    if bl.ALGORITHMS[name].capabilities.needs_linear_model:
        return bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian(0.2), EVERY_KIND[kind](2))
    return bl.Model(bl.networks.MLP([2]), bl.likelihoods.Gaussian(), EVERY_KIND[kind](7))


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_takes_a_prior_or_says_why_not(x64, name, kind):
    model, algorithm = model_with(name, kind), problems.quick(name)
    target, params = model.bind(problems.wiggle(), jax.random.key(0))

    def check():
        check_suits(algorithm, target, "auto", None, None, None)
        algorithm.check(target, params)

    if name not in REFUSES.get(kind, ()):
        check()
        return
    with pytest.raises(ArgumentError) as caught:
        check()
    message = str(caught.value)
    assert message.startswith("`prior` must ")
    assert name in message
    assert "Use bl." in message or "Learn it" in message or "bl.Laplace()" in message


NUMBERS = {"map": "mixture", "vogn": "full", "ngvi": "laplace", "hmc": "mixture"}


@pytest.mark.parametrize("name", [n for n in NAMES if n != "mc-dropout"])
def test_every_algorithm_steps_with_the_priors_it_takes(name, x64):
    """The structure of a step with priors of every kind; of one method of each kind its numbers."""
    algorithm = problems.quick(name)
    # "fan-in" has numbers like any others
    for kind in [k for k in EVERY_KIND if name not in REFUSES.get(k, ()) and k != "fan-in"]:
        target, params = model_with(name, kind).bind(problems.wiggle(), jax.random.key(0))

        def stepped(key, target=target, params=params):
            state = algorithm.init(key, target, params)
            return algorithm.step(key, target, state, target.data), state

        (shapes, _), first = jax.eval_shape(stepped, jax.random.key(0))
        assert jax.tree.structure(shapes) == jax.tree.structure(first), kind
        if kind == NUMBERS.get(name):
            (state, info), _ = jax.jit(stepped)(jax.random.key(0))
            assert bool(tree.all_finite((state, info))), kind


def test_other_refusals(x64):
    model = model_with("ngvi", "mixture")
    data = problems.wiggle()
    for algorithm in (
        bl.NGVI(gradient="hessian"),
        bl.QBVI(gradient="score", form="log-likelihood"),
        bl.BayesByBackprop(kl="closed-form"),
    ):
        with pytest.raises(ArgumentError, match="`prior` must be Gaussian for"):
            bl.fit(model, algorithm, data, seed=0)
    with pytest.raises(ArgumentError, match="`rao_blackwell` must be left out"):
        bl.fit(model_with("bbvi", "full"), bl.BBVI(rao_blackwell=True), data, seed=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bl.priors.Normal(cov=np.ones((2, 3))), "`cov` must be a square matrix"),
        (lambda: bl.priors.Normal(prec=-np.eye(2)), "`prec` must be a positive definite matrix"),
        (lambda: bl.priors.Normal(cov=[[1.0, 0.5], [0.0, 1.0]]), "`cov` must be symmetric"),
        (lambda: bl.priors.Normal(cov=np.eye(2), prec=np.eye(2)), "`prec` must be left out"),
        (lambda: bl.priors.Normal(scale=2.0, cov=np.eye(2)), "`scale` must be left out"),
        (lambda: bl.priors.Normal(cov=np.eye(2), learn=True), "`learn` must be left out"),
        (lambda: bl.priors.Normal(learn="leaf"), "`learn` must be True or False"),
        (lambda: bl.priors.Normal.fan_in(gain=0.0), "`scale` must be positive"),
        (lambda: bl.priors.Laplace(scale=-1.0), "`scale` must be positive"),
        (lambda: bl.priors.ScaleMixture((1.0, 2.0), (0.5, 0.6)), "`weights` must add up to one"),
        (lambda: bl.priors.ScaleMixture((1.0, 2.0), (1.0,)), "`weights` must be as many"),
        (lambda: bl.priors.ScaleMixture((1.0, 0.0)), "`scales` must be positive"),
        (lambda: bl.priors.Hierarchical(df=0.0), "`df` must be"),
        (lambda: bl.priors.Hierarchical(by_input=[3]), "`by_input` must be name patterns"),
    ],
)
def test_bad_priors_are_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


def test_a_matrix_of_the_wrong_size_is_refused_with_the_order(x64):
    with pytest.raises(ArgumentError, match=r"be \(9, 9\).*'bias', 'weight'"):
        bl.priors.Normal(cov=np.eye(4)).bind(weights()["network"])
