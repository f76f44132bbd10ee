"""Full, block and diagonal Gaussians against SciPy, dense NumPy formulas, and each other.

Most tests run in the user's 32-bit world: the families must answer in NumPy float64 all the same.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from bayeslearn.errors import ArgumentError
from bayeslearn.families import BlockGaussian, DiagonalGaussian, FullGaussian, Point, make_groups
from bayeslearn.geometry import natural
from bayeslearn.models.priors.gaussian import GaussianPrior
from bayeslearn.precision import inside_double_precision

K = 8
NUM = 4000  # draws, always as many: one shape to compile
SIZES = (1, 2, 2, 1, 2)  # of the leaves
GROUPS = ((4, 1), (3, 0, 2))  # not neighbours, not in order, and alike in size: fewer to compile
ROWS = ([6, 7, 1, 2], [5, 0, 3, 4])
OTHER_GROUPS = ((0, 1, 3), (2, 4))
KINDS = ("full", "block", "diagonal")


def like(vector):
    """A tree like a network's."""
    return {
        "likelihood": {"log_scale": vector[0]},
        "network": [
            {"bias": vector[1:3], "weight": vector[3:5].reshape(2, 1)},
            {"bias": vector[5], "weight": vector[6:8]},
        ],
    }


PARAMS = like(np.zeros(K))


def ravel(params):
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(params)])


def square(rng, k):
    return rng.normal(size=(k, k)) + 2.0 * np.eye(k)


def make(kind, seed=0, groups=GROUPS):
    rng = np.random.default_rng(seed)
    mean = like(rng.normal(size=K))
    if kind == "full":
        return FullGaussian(mean, square(rng, K))
    if kind == "block":
        sizes = [sum(SIZES[i] for i in group) for group in groups]
        return BlockGaussian(mean, [square(rng, k) for k in sizes], groups)
    return DiagonalGaussian(mean, like(np.exp(0.3 * rng.normal(size=K))))


def make_prior(seed=5):
    rng = np.random.default_rng(seed)
    mean, prec = like(rng.normal(size=K)), like(np.exp(rng.normal(size=K)))
    mean["network"][0]["weight"], prec["network"][0]["weight"] = 0.3, 2.0  # numbers broadcast
    prec["network"][0]["bias"] = np.asarray(0.5)
    return GaussianPrior(mean, prec)


def moments(q):
    """Mean and covariance put together by NumPy alone."""
    if isinstance(q, GaussianPrior):
        full = [
            jax.tree.map(lambda v, p: np.broadcast_to(v, np.shape(p)), values, PARAMS)
            for values in (q.mean, q.prec)
        ]
        return ravel(full[0]), np.diag(1.0 / ravel(full[1]))
    if isinstance(q, DiagonalGaussian):
        return ravel(q.mean), np.diag(ravel(q.std) ** 2)
    if isinstance(q, FullGaussian):
        return ravel(q.mean), q.factor @ q.factor.T
    ranges = np.split(np.arange(K), np.cumsum(SIZES)[:-1])
    cov = np.zeros((K, K))
    for group, factor in zip(q.groups, q.factors, strict=True):
        rows = np.concatenate([ranges[i] for i in group])
        cov[np.ix_(rows, rows)] = factor @ factor.T
    return ravel(q.mean), cov


def close(actual, expected, tolerance=1e-10):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_density_entropy_and_moments(kind):
    q = make(kind)
    mean, cov = moments(q)
    w = np.random.default_rng(1).normal(size=K)
    scipy_q = scipy.stats.multivariate_normal(mean, cov)
    close(q.log_prob(like(w)), scipy_q.logpdf(w))
    close(q.entropy(), scipy_q.entropy())
    close(q.mean_vector(), mean)
    close(q.cov_matrix(), cov)
    close(q.prec_matrix(), np.linalg.inv(cov))
    close(q.std, like(np.sqrt(np.diag(cov))))
    close(q.to_full().cov_matrix(), cov)


def test_any_factor_of_a_covariance_is_the_same_gaussian():
    q = make("full")
    lower = np.linalg.cholesky(q.factor @ q.factor.T)
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(K, K)))[0]
    w = like(np.ones(K))
    assert np.abs(np.triu(q.factor, 1)).max() > 0.5
    for factor in (lower, q.factor @ rotation, -q.factor):
        same = FullGaussian(q.mean, factor)
        close(same.log_prob(w), q.log_prob(w), 1e-11)
        close(same.kl(q), np.float64(0.0), 1e-11)
        close(same.cholesky(), lower)


def test_constructors():
    q = make("full")
    mean, cov = moments(q)
    close(FullGaussian.from_cov(q.mean, cov).cov_matrix(), cov)
    close(FullGaussian.from_prec(q.mean, np.linalg.inv(cov)).cov_matrix(), cov)
    close(FullGaussian.from_cov(q.mean, cov).mean_vector(), mean)
    d = make("diagonal")
    for same in (FullGaussian.from_std(*_pair(d)), BlockGaussian.from_std(*_pair(d), GROUPS)):
        close(same.cov_matrix(), moments(d)[1])
        close(same.std, d.std)
    close(BlockGaussian.from_std(d.mean, 0.1, GROUPS).cov_matrix(), 0.01 * np.eye(K))


def _pair(q):
    return q.mean, q.std


@pytest.mark.parametrize("kind", KINDS)
def test_kl_is_the_dense_formula(kind):
    q = make(kind)
    m, s = moments(q)
    others = [make_prior(), make("full", 3), make("block", 3), make("diagonal", 3)]
    for other in [*others, make("block", 4, OTHER_GROUPS)]:
        m0, s0 = moments(other)
        p0 = np.linalg.inv(s0)
        trace = np.trace(p0 @ s) + (m - m0) @ p0 @ (m - m0)
        log_ratio = np.linalg.slogdet(s0)[1] - np.linalg.slogdet(s)[1]
        close(q.kl(other), 0.5 * (trace - K + log_ratio))
    close(q.kl(q), np.float64(0.0), 1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_the_moments_and_the_kl(kind):
    q, other = make(kind), make_prior()
    mean, cov = moments(q)
    draws = q.sample(jax.random.key(0), NUM)
    assert jax.tree.structure(draws) == jax.tree.structure(PARAMS)
    flat = np.concatenate([np.reshape(d, (NUM, -1)) for d in jax.tree.leaves(draws)], axis=1)
    errors = (flat.mean(0) - mean) / np.sqrt(np.diag(cov) / NUM)
    assert np.abs(errors).max() < 4
    errors = np.sqrt((np.outer(np.diag(cov), np.diag(cov)) + cov**2) / NUM)
    assert np.abs((np.cov(flat.T) - cov) / errors).max() < 4
    with jax.enable_x64(True):
        ratio = jax.jit(jax.vmap(lambda w: q.log_prob(w) - other.log_prob(w)))(draws)
    ratio = np.asarray(ratio)
    assert abs(np.mean(ratio) - q.kl(other)) < 4 * np.std(ratio) / np.sqrt(NUM)


@pytest.mark.parametrize("kind", ["block", "diagonal"])
def test_structured_equals_full_draw_by_draw(kind):
    q = make(kind)
    full, key = q.to_full(), jax.random.key(1)
    close(q.sample(key, NUM), full.sample(key, NUM), 1e-12)
    w = like(np.arange(K) / K)
    close(q.log_prob(w), full.log_prob(w), 1e-12)
    close(q.entropy(), full.entropy(), 1e-12)
    close(q.kl(make("full", 3)), full.kl(make("full", 3)), 1e-12)
    close(q.kl(make_prior()), full.kl(make_prior()), 1e-12)


def test_transform_takes_vectors_and_pytrees_and_keeps_the_dtype():
    noise = np.random.default_rng(3).normal(size=K)
    for kind in ("full", "block"):
        q = make(kind)
        mean, _ = moments(q)
        expected = mean + q.to_full().factor @ noise
        close(q.transform(noise), like(expected), 1e-12)
        close(q.transform(like(noise)), like(expected), 1e-12)
    mixed = like(noise) | {"likelihood": {"log_scale": np.float32(0.5)}}
    moved = FullGaussian(mixed, np.eye(K)).transform(noise)
    assert moved["likelihood"]["log_scale"].dtype == np.float32
    assert moved["network"][0]["bias"].dtype == np.float64


def test_terms_of_the_blocks():
    q, w = make("block"), np.random.default_rng(4).normal(size=K)
    mean, cov = moments(q)
    terms = q.log_prob_terms(like(w))
    for rows, term in zip(ROWS, terms, strict=True):
        marginal = scipy.stats.multivariate_normal(mean[rows], cov[np.ix_(rows, rows)])
        close(term, marginal.logpdf(w[rows]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("coordinates", ["natural", "expectation", "unconstrained"])
def test_round_trips(kind, coordinates):
    q = make(kind)
    extra = (GROUPS,) if kind == "block" else ()
    values = getattr(q, coordinates)()
    back = getattr(type(q), f"from_{coordinates}")(values, PARAMS, *extra)
    close(back.mean, q.mean)
    close(back.cov_matrix(), moments(q)[1])
    close(getattr(back, coordinates)(), values)


def test_natural_and_expectation_are_what_they_say():
    q = make("full")
    mean, cov = moments(q)
    prec = np.linalg.inv(cov)
    close(tuple(q.natural()), (prec @ mean, -0.5 * prec))
    close(tuple(q.expectation()), (mean, cov + np.outer(mean, mean)))
    d, b = make("diagonal"), make("block")
    v = ravel(d.std) ** 2
    close(tuple(d.natural()), (like(ravel(d.mean) / v), like(-0.5 / v)))
    close(tuple(d.expectation()), (d.mean, like(v + ravel(d.mean) ** 2)))
    mean, cov = moments(b)
    for rows, found in zip(ROWS, b.expectation(), strict=True):
        outer = np.outer(mean[rows], mean[rows])
        close(tuple(found), (mean[rows], cov[np.ix_(rows, rows)] + outer))
    with jax.enable_x64(True):
        values = natural.Natural(*map(jnp.asarray, q.natural()))
        first, second = map(np.asarray, jax.jit(jax.grad(natural.log_partition))(values))
    close((first, 0.5 * (second + second.T)), tuple(q.expectation()))


def test_unconstrained_numbers_are_free():
    rng = np.random.default_rng(6)
    values = {"mean": rng.normal(size=K), "log_cholesky": rng.normal(size=K * (K + 1) // 2)}
    q = FullGaussian.from_unconstrained(values, PARAMS)
    lower = np.zeros((K, K))
    lower[np.tril_indices(K)] = values["log_cholesky"]
    np.fill_diagonal(lower, np.exp(np.diag(lower)))
    close(q.cov_matrix(), lower @ lower.T)
    close(q.unconstrained(), values)


def test_cholesky_of_an_ill_conditioned_factor():
    left, right = (np.linalg.qr(np.random.default_rng(s).normal(size=(K, K)))[0] for s in (7, 8))
    q = FullGaussian(PARAMS, left @ np.diag(np.logspace(0, -10, K)) @ right)
    lower = q.cholesky()
    assert np.all(np.diag(lower) > 0)
    assert np.all(np.triu(lower, 1) == 0)
    close(np.sum(np.log(np.diag(lower))), np.log(np.logspace(0, -10, K)).sum(), 1e-5)
    with pytest.raises(ArgumentError, match="positive definite"):
        FullGaussian.from_cov(PARAMS, left @ np.diag(np.logspace(0, -20, K)) @ left.T)


@pytest.mark.parametrize("kind", KINDS)
def test_jit_vmap_and_gradients(kind):
    q, prior, w = make(kind), make_prior(), like(np.ones(K))

    @jax.jit
    def several(qs, other):
        def one(q):
            return q.log_prob(w), q.entropy(), q.kl(prior), q.kl(other), q.cov_matrix(), q.std

        return jax.vmap(one)(qs)

    with inside_double_precision():
        pair = [make(kind, 0), make(kind, 1)]
        results = several(jax.tree.map(lambda *a: jnp.stack(a), *pair), q)
        gradient = jax.jit(jax.grad(lambda z: _rebuild(kind, z).kl(prior)))(q.unconstrained())
    for i, one in enumerate(pair):
        found = jax.tree.map(lambda r, i=i: r[i], results)
        expected = (one.log_prob(w), one.entropy(), one.kl(prior), one.kl(q))
        close(found, (*expected, one.cov_matrix(), one.std), 1e-11)
    start, step = q.unconstrained(), jax.tree.map(lambda g: 1e-5 * np.asarray(g), gradient)
    up, down = (
        _rebuild(kind, jax.tree.map(lambda z, s, t=t: z + t * s, start, step)).kl(prior)
        for t in (1.0, -1.0)
    )
    norm = sum(np.sum(np.asarray(g) ** 2) for g in jax.tree.leaves(gradient))
    np.testing.assert_allclose((up - down) / 2e-5, norm, rtol=1e-4)


def _rebuild(kind, values):
    if kind == "block":
        return BlockGaussian.from_unconstrained(values, PARAMS, GROUPS)
    family = FullGaussian if kind == "full" else DiagonalGaussian
    return family.from_unconstrained(values, PARAMS)


@pytest.mark.parametrize("kind", KINDS)
def test_outside_double_precision(kind):
    assert not jax.config.jax_enable_x64
    q = make(kind)
    results = [
        q.mean_vector(),
        q.cov_matrix(),
        q.prec_matrix(),
        q.std,
        q.sample(jax.random.key(0), NUM),
    ]
    results += [q.log_prob(PARAMS), q.entropy(), q.kl(make("full", 3)), q.to_full()]
    results += [q.natural(), q.expectation(), q.unconstrained(), q.kl(make_prior())]
    results += [_rebuild(kind, q.unconstrained())]
    for leaf in jax.tree.leaves(results):
        assert isinstance(leaf, np.ndarray | np.float64)
        assert leaf.dtype == np.float64
    assert not jax.config.jax_enable_x64


def test_groups():
    assert make_groups(PARAMS, "leaf") == ((0,), (1,), (2,), (3,), (4,))
    assert make_groups(PARAMS, "layer") == ((0,), (1, 2), (3, 4))
    named = {"tail": ["*.1.*", "likelihood*"], "body": "network.0.*"}
    assert make_groups(PARAMS, named) == ((0, 3, 4), (1, 2))


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ("row", '"leaf", "layer"'),
        ({"a": ["network*"]}, "'likelihood.log_scale' in none"),
        ({"a": ["*"], "b": ["*.bias"]}, r"'network.0.bias' in \['a', 'b'\]"),
        ({"a": ["*"], "b": ["nothing"]}, "none for 'b'"),
    ],
)
def test_groups_refused(blocks, message):
    with pytest.raises(ArgumentError, match=message):
        make_groups(PARAMS, blocks)


def test_refused_before_it_is_allocated(monkeypatch):
    monkeypatch.setattr(jnp, "diag", lambda *_: pytest.fail("a matrix of 100 GB was asked for"))
    large = [np.broadcast_to(0.0, (60_000,)), np.broadcast_to(0.0, (60_000,))]
    with pytest.raises(ArgumentError, match="120000 x 120000"):
        FullGaussian.from_std(large, 1.0)
    with pytest.raises(ArgumentError, match="smaller blocks"):
        BlockGaussian.from_std(large, 1.0, ((0,), (1,)))


def test_refusals():
    with pytest.raises(ArgumentError, match=r"`factor` must be \(8, 8\)"):
        FullGaussian(PARAMS, np.eye(K - 1))
    with pytest.raises(ArgumentError, match="positive definite"):
        FullGaussian.from_prec(PARAMS, -np.eye(K))
    with pytest.raises(ArgumentError, match="each of the 5 leaves once"):
        BlockGaussian.from_std(PARAMS, 1.0, ((0, 1), (1, 2, 3, 4)))
    with pytest.raises(ArgumentError, match="be 2 matrices"):
        BlockGaussian(PARAMS, [np.eye(K)], GROUPS)
    for kind in KINDS:
        with pytest.raises(ArgumentError, match="be a Gaussian, got a Point"):
            make(kind).kl(Point(PARAMS))
