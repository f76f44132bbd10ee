"""The Gamma family against SciPy and against its own exponential-family identities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from bayeslearn.errors import ArgumentError
from bayeslearn.families import Gamma, Point
from bayeslearn.geometry.natural import Natural
from bayeslearn.precision import inside_double_precision

SHAPE = {"a": np.array([0.7, 2.5]), "b": np.array(11.0)}
RATE = {"a": np.array([1.3, 0.4]), "b": np.array(6.0)}
NUM = 4000  # draws, always as many: the sampler takes a second to compile
POINT = {"a": np.array([0.2, 5.0]), "b": np.array(1.9)}


def q():
    return Gamma(SHAPE, RATE)


def other():
    return Gamma(
        {"a": np.array([1.6, 1.1]), "b": np.array(8.0)}, {"a": np.ones(2), "b": np.array(3.0)}
    )


def flat(values):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(values)])


def scipy_gamma(gamma):
    return scipy.stats.gamma(flat(gamma.shape), scale=1.0 / flat(gamma.rate))


def close(actual, expected, tolerance=1e-10):
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def test_density_entropy_and_moments():
    reference = scipy_gamma(q())
    close(q().log_prob(POINT), reference.logpdf(flat(POINT)).sum())
    close(q().entropy(), reference.entropy().sum())
    close(flat(q().mean), reference.mean())
    close(flat(q().std), reference.std())
    assert q().log_prob({"a": np.array([-0.2, 5.0]), "b": np.array(1.9)}) == -np.inf


def test_kl_by_quadrature():
    p, r = scipy_gamma(q()), scipy_gamma(other())
    total = 0.0
    for i in range(3):
        mine = scipy.stats.gamma(p.args[0][i], scale=p.kwds["scale"][i])
        theirs = scipy.stats.gamma(r.args[0][i], scale=r.kwds["scale"][i])

        def integrand(t, mine=mine, theirs=theirs):
            x = np.exp(t)  # on a log scale the density has no pole at 0
            return x * mine.pdf(x) * (mine.logpdf(x) - theirs.logpdf(x))

        total += scipy.integrate.quad(integrand, -50, 6, limit=500, epsabs=1e-11)[0]
    close(q().kl(other()), total, 1e-8)
    close(q().kl(q()), 0.0, 1e-12)


def test_draws_have_the_expectations():
    gamma = q()
    draws = gamma.sample(jax.random.key(0), NUM)
    assert draws["a"].shape == (NUM, 2)
    for statistic, mean in zip(gamma.sufficient(draws), gamma.expectation(), strict=True):
        for name in ("a", "b"):
            error = np.std(statistic[name], axis=0) / np.sqrt(NUM)
            assert np.all(np.abs(np.mean(statistic[name], axis=0) - mean[name]) < 4 * error)
    with jax.enable_x64(True):
        ratio = jax.jit(jax.vmap(lambda w: gamma.log_prob(w) - other().log_prob(w)))(draws)
    ratio = np.asarray(ratio)
    assert abs(np.mean(ratio) - gamma.kl(other())) < 4 * np.std(ratio) / np.sqrt(NUM)


def test_natural_parameters_make_the_density():
    gamma = q()
    first, second = gamma.natural()
    log_t, t = gamma.sufficient(POINT)
    inner = flat(first) @ flat(log_t) + flat(second) @ flat(t)
    close(inner - gamma.log_partition(), gamma.log_prob(POINT), 1e-12)
    back = Gamma.from_natural(gamma.natural())
    close(flat(back.shape), flat(SHAPE), 1e-12)
    close(flat(back.rate), flat(RATE), 1e-12)


def test_derivatives_of_the_log_partition():
    gamma = q()

    def log_partition(vector):
        n1, n2 = ({"a": part[:2], "b": part[2]} for part in (vector[:3], vector[3:]))
        return Gamma.from_natural(Natural(n1, n2)).log_partition()

    with inside_double_precision():
        vector = jnp.asarray(np.concatenate([flat(part) for part in gamma.natural()]))
        gradient = jax.jit(jax.grad(log_partition))(vector)
        hessian = np.asarray(jax.jit(jax.hessian(log_partition))(vector))
    close(gradient, np.concatenate([flat(part) for part in gamma.expectation()]))
    fisher = gamma.fisher()
    assert fisher["a"].shape == (2, 2, 2)
    assert fisher["b"].shape == (2, 2)
    expected = np.zeros((6, 6))
    for i, block in enumerate([*fisher["a"], fisher["b"]]):
        expected[np.ix_([i, i + 3], [i, i + 3])] = block
    close(hessian, expected)


def test_conjugate_poisson_by_natural_parameters():
    counts = np.array([3, 0, 4, 2])
    prior = Gamma({"t": np.array(2.0)}, {"t": np.array(1.5)})
    first, second = prior.natural()
    added = Natural({"t": first["t"] + counts.sum()}, {"t": second["t"] - len(counts)})
    posterior = Gamma.from_natural(added)

    def joint(t):
        return prior.log_prob({"t": np.asarray(t)}) + scipy.stats.poisson(t).logpmf(counts).sum()

    constants = [joint(t) - posterior.log_prob({"t": np.asarray(t)}) for t in (0.3, 1.0, 4.0)]
    close(constants, constants[0])


def test_jit_vmap_and_reparametrised_gradient():
    gamma = q()

    @jax.jit
    def several(gammas):
        return jax.vmap(lambda g: (g.log_prob(POINT), g.kl(gamma), g.entropy()))(gammas)

    def mean_of_draws(g):
        return jnp.mean(g.sample(jax.random.key(2), NUM)["a"][:, 1])

    with inside_double_precision():
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), gamma, other())
        results = several(stacked)
        gradient = jax.grad(mean_of_draws)(gamma)
    for i, one in enumerate((gamma, other())):
        close(results[0][i], one.log_prob(POINT), 1e-11)
        close(results[1][i], one.kl(gamma), 1e-11)
        close(results[2][i], one.entropy(), 1e-11)
    # E t = shape / rate, so the derivatives are 1 / rate and -shape / rate^2
    np.testing.assert_allclose(gradient.shape["a"][1], 1 / 0.4, rtol=0.05)
    np.testing.assert_allclose(gradient.rate["a"][1], -2.5 / 0.4**2, rtol=0.05)
    assert np.asarray(gradient.shape["b"]) == 0


def test_outside_double_precision():
    assert not jax.config.jax_enable_x64
    gamma = q()
    results = [gamma.mean, gamma.std, gamma.sample(jax.random.key(0), NUM), gamma.log_prob(POINT)]
    results += [gamma.entropy(), gamma.kl(other()), gamma.natural(), gamma.expectation()]
    results += [gamma.log_partition(), gamma.fisher(), gamma.sufficient(POINT)]
    results += [Gamma.from_natural(gamma.natural())]
    for leaf in jax.tree.leaves(results):
        assert isinstance(leaf, np.ndarray | np.float64)
        assert leaf.dtype == np.float64
    assert not jax.config.jax_enable_x64


def test_refusals():
    with pytest.raises(ArgumentError, match="`rate` must be positive"):
        Gamma(np.ones(2), np.array([1.0, 0.0]))
    with pytest.raises(ArgumentError, match="structure and shapes"):
        Gamma(np.ones(2), np.array(1.0))
    with pytest.raises(ArgumentError, match="be a Gamma, got a Point"):
        q().kl(Point(POINT))
