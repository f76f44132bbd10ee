"""The survey's formulas as printed and as they should be (docs/errata.md), on exact answers.

Each test computes both on a problem small enough to know the answer: conjugate regression,
enumeration, quadrature or finite differences. The right one must hold to a tight tolerance and
the printed one must fail by the margin that docs/errata.md gives.

Exponential families, black-box methods, natural gradients and manifolds.
"""

from __future__ import annotations

import itertools

import jax
import numpy as np
import optax
import problems
import pytest
from formulas import (
    NOISE,
    PRIOR_PREC,
    apart,
    difference,
    hermite,
    random_spd,
)
from scipy import special, stats

from bayeslearn.algorithms.ng_bbvi import adam
from bayeslearn.algorithms.vadam import Correction, std_from_scale, vadam_update
from bayeslearn.algorithms.vogn import vogn_update
from bayeslearn.geometry import natural, spd

STEPS = 400


@pytest.fixture(autouse=True)
def _double(x64):
    return


@pytest.fixture(scope="module")
def problem():
    return problems.regression()


# Section 5: exponential families and natural gradients


def test_vec_statistics_are_not_minimal():
    """Errata 45: the Fisher matrix is the covariance of the sufficient statistics."""
    theta, weight = hermite(np.array([0.5, -0.3]), np.array([1.0, 0.7]), order=8)
    outer = theta[:, :, None] * theta[:, None, :]

    def smallest(statistics):
        centred = statistics - weight @ statistics
        return np.linalg.eigvalsh(centred.T @ (weight[:, None] * centred))[0]

    vech = outer[:, [0, 1, 1], [0, 0, 1]]
    assert abs(smallest(np.hstack([theta, outer.reshape(-1, 4)]))) < 1e-12
    assert smallest(np.hstack([theta, vech])) > 0.01


def test_gaussian_constant_is_minus_half():
    """Errata 46 and 47."""
    mean, cov, theta = np.array([0.5, -1.0, 0.2]), random_spd(0), np.array([0.3, -1.2, 0.8])
    prec = np.linalg.inv(cov)
    first, second = prec @ mean, -0.5 * prec
    partition = -0.25 * first @ np.linalg.solve(second, first)
    partition -= 0.5 * np.linalg.slogdet(-2 * second)[1]
    inside = first @ theta + theta @ second @ theta - partition
    exact = stats.multivariate_normal(mean, cov).logpdf(theta)
    constant = 1.5 * np.log(2 * np.pi)
    assert abs(inside - constant - exact) < 1e-12
    assert abs(inside + constant - exact - 3 * np.log(2 * np.pi)) < 1e-12  # 5.5 nats


def test_proximal_form_is_a_maximum():
    """Errata 49."""
    start, g, fisher, beta = np.array([1.0, -2.0]), np.array([0.5, 1.5]), random_spd(1, 2), 0.3

    def objective(point):
        step = point - start
        return point @ g - step @ fisher @ step / (2 * beta)

    step = start + beta * np.linalg.solve(fisher, g)
    assert np.abs(difference(objective, step)).max() < 1e-8
    rng = np.random.default_rng(0)
    assert all(objective(step + d) < objective(step) for d in rng.normal(size=(20, 2)))
    assert objective(start + 1e4 * g) < -1e6  # as a minimum it has no end


# Section 6: black-box methods


def test_black_box_keeps_log_p():
    """Errata 58: with grad_zeta log p = 0 in its place the data are gone."""
    mean, std = np.array([0.4]), np.array([0.5])
    theta, weight = hermite(mean, std)
    theta = theta[:, 0]
    log_joint = -0.5 * 8 * (theta - 2.0) ** 2 - 0.1 * theta**4
    log_q = stats.norm.logpdf(theta, mean[0], std[0])
    score = np.stack([(theta - mean[0]) / std[0] ** 2, ((theta - mean[0]) / std[0]) ** 2 - 1])

    def bound(zeta):
        m, s = zeta[0], np.exp(zeta[1])
        fourth = m**4 + 6 * m**2 * s**2 + 3 * s**4
        return -4 * ((m - 2) ** 2 + s**2) - 0.1 * fourth + np.log(s)

    exact = difference(bound, [mean[0], np.log(std[0])])
    np.testing.assert_allclose(score @ (weight * (log_joint - log_q)), exact, atol=1e-7)
    assert exact[0] > 10
    printed = score @ (weight * (0.0 - log_q))
    np.testing.assert_allclose(printed, [0.0, 1.0], atol=1e-10)  # the entropy's, and no more


def test_black_box_evaluates_whole_draws():
    """Errata 59: y = b (a x) has two weights; the other one must be the draw's, not its mean."""
    mean, std, data, noise = np.array([0.6, 1.1]), np.array([0.3, 0.4]), (1.3, 2.0), 0.5
    theta, weight = hermite(mean, std, order=16)

    def log_joint(a, b):
        x, y = data
        return -0.5 * ((y - a * b * x) / noise) ** 2 - 0.5 * a**2 - 0.5 * b**2

    def bound(zeta):
        nodes, w = hermite(zeta, std, order=16)
        return w @ log_joint(nodes[:, 0], nodes[:, 1])  # the entropy does not hold the mean

    exact = difference(bound, mean)[0]
    score = (theta[:, 0] - mean[0]) / std[0] ** 2
    whole = score @ (weight * log_joint(theta[:, 0], theta[:, 1]))
    alone = score @ (weight * log_joint(theta[:, 0], mean[1]))
    assert abs(whole / exact - 1) < 1e-7
    assert abs(alone / exact - 1) > 0.1


def printed_adam(gradients, beta1=0.9, beta2=0.999, epsilon=1e-8):
    m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        m = beta1 * m + (1 - beta2) * g
        v = beta2 * v + (1 - beta1) * g**2
        yield m / (1 - beta2**t) / (np.sqrt(v / (1 - beta2**t)) + epsilon)


def test_adam_decay_rates_in_their_places():
    """Errata 60, against Optax."""
    gradients = np.random.default_rng(0).normal(size=(3, 2))
    reference = optax.scale_by_adam(0.9, 0.999, 1e-8)
    state = reference.init(jax.numpy.zeros(2))
    first = second = np.zeros(2)
    for t, g in enumerate(gradients, start=1):
        wanted, state = reference.update(jax.numpy.asarray(g), state)
        found, first, second = adam(g, first, second, t, 0.9, 0.999, 1e-8)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    steps = list(printed_adam(itertools.repeat(0.7, 20_000)))
    assert abs(steps[0] - 0.1) < 1e-6  # 1 / 10 of Adam's first step
    assert abs(steps[-1] - 1e-3) < 1e-6  # 1 / 1000 of its steady one


def test_adam_squares_element_by_element():
    """Errata 61: with the squared norm a weight of small gradient hardly moves."""
    gradient = np.array([1.0, 1e-3])
    found, *_ = adam(gradient, np.zeros(2), np.zeros(2), 1, 0.9, 0.999, 1e-12)
    np.testing.assert_allclose(found, [1.0, 1.0], rtol=1e-8)
    printed = gradient / np.sqrt(np.sum(gradient**2))
    assert printed[1] < 1.01e-3


def test_sampled_fisher_is_singular_with_few_draws():
    """Errata 62: 3 scores, 4 parameters."""
    noise = np.random.default_rng(0).normal(size=(3, 2))
    scores = np.hstack([noise, noise**2 - 1])
    fisher = scores.T @ scores / 3
    assert np.linalg.eigvalsh(fisher)[0] < 1e-12
    step = np.asarray(natural.damped_solve(fisher, scores[0] + 0.1, 0.1))
    assert np.all(np.isfinite(step))
    level = 0.1 * np.trace(fisher) / 4
    np.testing.assert_allclose((fisher + level * np.eye(4)) @ step, scores[0] + 0.1, rtol=1e-8)
    assert np.linalg.cond(fisher) > 1e12


# Section 7: natural gradients in exponential families


@pytest.fixture(scope="module")
def wide(problem):
    """A q far from the posterior, and its exact gradients."""
    mean = problem.mean + np.array([0.4, -0.8, 0.3, 0.6])
    prec = 10 * np.eye(4) + random_spd(4, 4)
    grad_mean = problem.prec @ (problem.mean - mean)
    return mean, prec, grad_mean, 0.5 * (prec - problem.prec)


def test_ngvi_precision_update(problem, wide):
    """Errata 64 and 65, by one step of beta = 1."""
    mean, prec, g, grad_cov = wide
    new = prec - 2 * grad_cov
    np.testing.assert_allclose(new, problem.prec, rtol=1e-12)
    np.testing.assert_allclose(np.linalg.solve(new, new @ mean + g), problem.mean, rtol=1e-10)
    assert (prec @ g - 2 * grad_cov @ mean).shape == (4,)  # a vector for a matrix
    # the second line of the mean's derivation, read with its matrix and vectors broadcast
    assert ((prec - 2 * grad_cov @ mean) + g).shape == (4, 4)


def test_first_natural_parameter_is_prec_times_mean(problem, wide):
    """Errata 63."""
    mean, prec, g, grad_cov = wide
    move = g - 2 * grad_cov @ mean
    right = np.linalg.solve(problem.prec, prec @ mean + move)
    printed = np.linalg.solve(problem.prec, mean + move)
    np.testing.assert_allclose(right, problem.mean, rtol=1e-10)
    assert np.max(np.abs(printed - problem.mean) / problem.std) > 1


def test_ngvi_mean_uses_the_new_covariance(problem, wide):
    """Errata 66: exact at beta = 1 with the new one; both settle at small beta."""
    mean, prec, g, _ = wide
    new = mean + np.linalg.solve(problem.prec, g)
    old = mean + np.linalg.solve(prec, g)
    np.testing.assert_allclose(new, problem.mean, rtol=1e-10)
    assert np.max(np.abs(old - problem.mean) / problem.std) > 50
    for is_new in (True, False):
        m, p = mean, prec
        for _ in range(STEPS):
            after = 0.9 * p + 0.1 * problem.prec
            used = after if is_new else p
            m = m + 0.1 * np.linalg.solve(used, problem.prec @ (problem.mean - m))
            p = after
        np.testing.assert_allclose(m, problem.mean, rtol=1e-8)


def test_von_standard_deviation(problem):
    """Errata 70: at the fixed point s = diag(H) it is mean field's."""
    rows = len(problem.y)
    share = PRIOR_PREC / rows
    s = np.diag(problem.x.T @ problem.x) / NOISE**2 / rows
    exact = np.diag(problem.prec) ** -0.5
    right = np.asarray(std_from_scale(s, np.full(4, share), np.float64(rows)))
    np.testing.assert_allclose(right, exact, rtol=1e-12)
    printed = 1 / (rows * (s + share) ** 0.5)
    np.testing.assert_allclose(exact / printed, np.sqrt(rows), rtol=1e-12)


GRADIENTS = np.random.default_rng(5).normal(loc=0.5, size=(6, 3))
RATE, GAMMA1, GAMMA2, SHARE = 0.05, 0.9, 0.99, 0.02


def vadam_means():
    """The means after each step, and the corrected s, by the package's update."""
    mean = m = s = np.zeros(3)
    means, roots = [mean], []
    for t, g in enumerate(GRADIENTS, start=1):
        correction = Correction(1 - GAMMA1**t, 1 - GAMMA2**t)
        options = {"rate": RATE, "beta1": GAMMA1, "beta2": GAMMA2, "correction": correction}
        new = vadam_update(mean, m, s, g, g**2, np.zeros(3), np.full(3, SHARE), **options)
        mean, m, s = map(np.asarray, new)
        means.append(mean)
        roots.append(np.sqrt(s / (1 - GAMMA2**t)))
    return np.array(means), np.array(roots)


HEAVY_BALL = {"right": 0.0, "coefficient": 0.4, "ratio": 0.1, "product": 0.4}


@pytest.mark.parametrize("variant", HEAVY_BALL)
def test_vadam_heavy_ball_form(variant):
    """Errata 72 (coefficient), 73 (ratio), 74 (product): the same steps as the Adam form."""
    wanted, roots = vadam_means()
    mean = before = np.zeros(3)
    found = [mean]
    for t, g in enumerate(GRADIENTS, start=1):
        rate = RATE * (1 - GAMMA1) / (1 - GAMMA1**t)
        momentum = GAMMA1 * (1 - GAMMA1 ** (t - 1)) / (1 - GAMMA1**t)
        if variant == "product":
            momentum = GAMMA1 * (1 - GAMMA1 ** (t - 1)) * (1 - GAMMA1**t)
        if variant == "coefficient":
            momentum = RATE / (1 - RATE)
        now, past = roots[t - 1], roots[max(t - 2, 0)]
        scale = (past + SHARE) / (now + SHARE)
        if variant == "ratio":
            scale = (past**2 + SHARE) / (now**2 + SHARE)
        step = -rate * (g + SHARE * mean) / (now + SHARE) + momentum * scale * (mean - before)
        mean, before = mean + step, mean
        found.append(mean)
    if variant == "right":
        np.testing.assert_allclose(found, wanted, atol=1e-12)
    else:
        assert apart(np.array(found), wanted) > HEAVY_BALL[variant]


def test_vadam_keeps_uncorrected_averages():
    """Errata 76."""
    wanted, _ = vadam_means()
    mean = m = s = np.zeros(3)
    for t, g in enumerate(GRADIENTS, start=1):
        m = (GAMMA1 * m + (1 - GAMMA1) * (g + SHARE * mean)) / (1 - GAMMA1**t)
        s = (GAMMA2 * s + (1 - GAMMA2) * g**2) / (1 - GAMMA2**t)
        mean = mean - RATE * m / (np.sqrt(s) + SHARE)
    assert apart(mean, wanted[-1]) > 0.5
    # without noise and prior it must be Adam
    reference = optax.adam(RATE, GAMMA1, GAMMA2, eps=0.0)
    state, at = reference.init(jax.numpy.zeros(3)), np.zeros(3)
    ours = m = s = np.zeros(3)
    for t, g in enumerate(GRADIENTS[:3], start=1):
        step, state = reference.update(jax.numpy.asarray(g), state)
        at = at + np.asarray(step)
        correction = Correction(1 - GAMMA1**t, 1 - GAMMA2**t)
        options = {"rate": RATE, "beta1": GAMMA1, "beta2": GAMMA2, "correction": correction}
        new = vadam_update(ours, m, s, g, g**2, np.zeros(3), np.zeros(3), **options)
        ours, m, s = map(np.asarray, new)
        np.testing.assert_allclose(ours, at, rtol=1e-6)


@pytest.mark.parametrize(("factor", "low", "high"), [(1, 0.9, 1.1), (1 / 3, 0.1, 0.13), (3, 7, 10)])
def test_squared_gradients_are_the_empirical_fisher(factor, low, high):
    """Errata 78: VOGN's fixed point against mean field, the noise scale `factor` too large."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(5000, 4))
    fixed = 0.7 * factor
    y = x @ rng.normal(size=4) + 0.7 * rng.normal(size=5000)
    prec = x.T @ x / fixed**2 + PRIOR_PREC * np.eye(4)
    residual = y - x @ np.linalg.solve(prec, x.T @ y / fixed**2)
    var = 1 / np.diag(prec)
    for _ in range(50):  # s = E_q[mean_i g_i^2], g_i = x_i (residual at theta) / fixed^2
        squares = residual**2 + x**2 @ var
        var = 1 / ((x**2).T @ squares / fixed**4 + PRIOR_PREC)
    ratio = var * np.diag(prec)
    assert np.all(ratio > low)
    assert np.all(ratio < high)


def vogn_run(problem, variant, steps, units=1.0, start=1.0):
    """VOGN with exact gradient and Hessian diagonal: distance in sds, s / h, the least s."""
    x, rows = units * problem.x, len(problem.y)
    prec = x.T @ x / NOISE**2 + PRIOR_PREC * np.eye(4)
    exact, std = np.linalg.solve(prec, x.T @ problem.y / NOISE**2), np.diag(prec) ** -0.5
    share, beta1, beta2, rate = PRIOR_PREC / rows, 0.9, 0.1, 0.02
    h = np.diag(x.T @ x) / NOISE**2 / rows
    mean, m, s = exact + start * std, np.zeros(4), h.copy()
    least = np.inf
    for _ in range(steps):
        g = -x.T @ (problem.y - x @ mean) / NOISE**2 / rows
        if variant == "right":
            options = {"rate": rate / (1 - beta1), "beta1": beta1, "beta2": beta2}
            new = vogn_update(
                mean, m, s, g, h, np.zeros(4), share, weight=1.0, damping=0.0, **options
            )
            mean, m, s = map(np.asarray, new)
            continue
        m = beta1 * m + ((-g if variant == "sign" else g) + share * mean)
        s = (1 - beta2) * (m if variant == "average" else s) + beta2 * h
        least = min(least, np.min(s))
        if variant == "product":
            mean = mean - rate * m * (s + share)
        else:
            mean = mean - rate * m / (s + share)
    return np.max(np.abs(mean - exact) / std), s / h, least


@pytest.mark.parametrize("variant", ["right", "sign", "average", "product"])
def test_vogn_update(problem, variant):
    """Errata 79 (sign), 80 (average), 81 (product), each as printed with the others right."""
    if variant == "right":
        for units in (1.0, 3.0):  # Newton's step does not mind the units of x
            off, s, _ = vogn_run(problem, variant, 200, units)
            assert off < 1e-2
            np.testing.assert_allclose(s, np.ones(4), rtol=1e-10)
    elif variant == "average":
        _, s, _ = vogn_run(problem, variant, STEPS)
        np.testing.assert_allclose(s, np.full(4, 0.1), rtol=1e-3)  # beta2 h: the variance is 10 x
        _, _, least = vogn_run(problem, variant, 1, start=-20.0)
        assert least < 0  # and here it is none
    else:
        off, _, _ = vogn_run(problem, variant, 60, units=3.0 if variant == "product" else 1.0)
        assert off > 1000


def test_prior_is_of_the_same_family():
    """Errata 84: q = Gamma(a, b), the natural gradient of E_q[log p - log q] by Fisher solve."""
    a, b = 3.0, 2.0
    fisher = np.array([[special.polygamma(1, a), -1 / b], [-1 / b, a / b**2]])

    def natural_gradient(expected_log_prior):
        def bound(z):
            entropy = stats.gamma(z[0], scale=1 / z[1]).entropy()
            return expected_log_prior(*z) + entropy

        step = np.linalg.solve(fisher, difference(bound, [a, b]))
        return step * np.array([1.0, -1.0])  # of lambda = (a - 1, -b)

    here = np.array([a - 1, -b])
    eta = np.array([0.7, -1.4])
    same = natural_gradient(lambda a, b: eta[0] * (special.digamma(a) - np.log(b)) + eta[1] * a / b)
    np.testing.assert_allclose(same, eta - here, atol=1e-7)
    # a Gaussian with the very same two numbers as its natural parameters
    other = natural_gradient(lambda a, b: eta[0] * a / b + eta[1] * a * (a + 1) / b**2)
    assert apart(other, eta - here) > 1


# Section 8: manifolds


def test_descent_goes_down():
    """Errata 85: argmin with zeta + beta gradient walks away from the minimum."""
    down = up = np.array([1.0, -2.0])
    curvature = np.diag([1.0, 3.0])
    for _ in range(100):
        down, up = down - 0.1 * curvature @ down, up + 0.1 * curvature @ up
    assert np.linalg.norm(down) < 1e-4
    assert np.linalg.norm(up) > 1e4


def test_projection_is_symmetrisation(problem, wide):
    """Errata 92: one draw's v g^T has the right trace with every symmetric direction only so."""
    mean, prec, _, _ = wide
    theta = mean + np.linalg.solve(np.linalg.cholesky(prec).T, np.array([0.5, -1.0, 0.3, 1.2]))
    v = prec @ (theta - mean)
    raw = 0.5 * np.outer(v, problem.prec @ (problem.mean - theta) + v)
    projected = np.asarray(spd.symmetrize(raw))
    direction = random_spd(7, 4)
    assert abs(np.sum(raw * direction) / np.sum(projected * direction) - 1) < 1e-12

    def retracted(g):
        xi = -0.02 * g
        return prec + xi + 0.5 * xi @ np.linalg.solve(prec, xi)

    assert apart(retracted(projected), retracted(projected).T) < 1e-12
    assert apart(retracted(raw), retracted(raw).T) > 0.1


def printed_transport(z, destination, xi):
    """Eqs. (118) and (119) with the destination where a tangent vector belongs."""
    values, vectors = np.linalg.eigh(z)
    root, inverse = ((vectors * values**p) @ vectors.T for p in (0.5, -0.5))
    values, vectors = np.linalg.eigh(inverse @ destination @ inverse / 2)
    q = root @ (vectors * np.exp(values)) @ vectors.T @ inverse
    return q @ xi @ q.T


def test_transport_to_where_it_is_changes_nothing():
    """Errata 93: as labelled it stretches by e even when the destination is the point itself."""
    z, xi = random_spd(0), random_spd(1) - random_spd(2)
    np.testing.assert_allclose(np.asarray(spd.transport(z, z, xi)), xi, atol=1e-10)
    np.testing.assert_allclose(printed_transport(z, z, xi), np.e * xi, rtol=1e-10)
    # with a tangent vector eta it is right, and zero is the one that stays
    np.testing.assert_allclose(printed_transport(z, np.zeros((3, 3)), xi), xi, atol=1e-10)


def test_fisher_matrix_of_the_covariance_is_half():
    """Errata 97: KL(N(0, S) | N(0, S + t D)) = t^2/2 D^T F D + ..., by second differences."""
    cov, direction = random_spd(0), random_spd(1) - random_spd(2)

    def divergence(t):
        other = cov + t * direction
        trace = np.trace(np.linalg.solve(other, cov)) - 3
        return 0.5 * (trace + np.linalg.slogdet(other)[1] - np.linalg.slogdet(cov)[1])

    h = 1e-4
    exact = (divergence(h) - 2 * divergence(0.0) + divergence(-h)) / h**2
    whitened = np.linalg.solve(cov, direction)
    kronecker = np.trace(whitened @ whitened)
    assert abs(0.5 * kronecker / exact - 1) < 1e-4
    assert abs(2.0 * kronecker / exact - 4) < 1e-3
    gradient = random_spd(3)
    np.testing.assert_allclose(
        np.asarray(natural.natural_gradient_cov(cov, gradient)), 2 * cov @ gradient @ cov, rtol=1e-9
    )


def test_manifold_mean_step_has_one_covariance(problem):
    """Errata 98: at the posterior's covariance the natural step of 1 is the whole way."""
    mean = problem.mean + np.array([0.4, -0.8, 0.3, 0.6])
    natural_gradient = problem.cov @ (problem.prec @ (problem.mean - mean))
    np.testing.assert_allclose(mean + natural_gradient, problem.mean, rtol=1e-10)
    printed = mean + problem.cov @ natural_gradient
    assert apart(printed - problem.mean, mean - problem.mean) < 0.1  # it hardly moves


def transport(z, y, xi):
    factor = np.linalg.cholesky(z)
    inverse = np.linalg.inv(factor)
    values, vectors = np.linalg.eigh(inverse @ y @ inverse.T)
    e = factor @ (vectors * np.sqrt(values)) @ vectors.T @ inverse
    return e @ xi @ e.T


def manifold_run(problem, wide, carried, on_precision, omega=0.4, beta=0.05):
    """MGVB or EMGVB with exact gradients: distance to the posterior's precision."""
    prec = wide[1]
    point = prec if on_precision else np.linalg.inv(prec)
    momentum, before = None, point
    for _ in range(STEPS):
        prec = point if on_precision else np.linalg.inv(point)
        if np.linalg.cond(point) > 1e10 or apart(prec, problem.prec) > 1e3:
            return np.inf
        grad_cov = 0.5 * (prec - problem.prec)
        gradient = -2 * grad_cov if on_precision else point @ grad_cov @ point
        if momentum is None:
            momentum = gradient
        else:
            momentum = carried * transport(before, point, momentum) + (1 - omega) * gradient
        before, step = point, beta * momentum
        point = point + step + 0.5 * step @ np.linalg.solve(point, step)
        point = 0.5 * (point + point.T)
    return apart(point if on_precision else np.linalg.inv(point), problem.prec)


@pytest.mark.parametrize("on_precision", [False, True])
def test_manifold_momentum_is_weighted(problem, wide, on_precision):
    """Errata 101 (MGVB) and 109 (EMGVB): omega on the transported momentum."""
    z, y, xi = random_spd(0), random_spd(5), random_spd(1) - random_spd(2)
    np.testing.assert_allclose(transport(z, y, xi), np.asarray(spd.transport(z, y, xi)), atol=1e-9)
    assert manifold_run(problem, wide, carried=0.4, on_precision=on_precision) < 1e-3
    assert manifold_run(problem, wide, carried=1.0, on_precision=on_precision) > 0.5


def test_h_function_has_no_expectation():
    """Errata 105: as a constant it would leave nothing of the gradient."""
    theta, weight = hermite(np.array([0.4]), np.array([0.5]))
    theta = theta[:, 0]
    h = -4.0 * (theta - 2.0) ** 2 - stats.norm.logpdf(theta, 0.4, 0.5)
    v = (theta - 0.4) / 0.25
    exact = -8.0 * (0.4 - 2.0)
    assert abs(v @ (weight * h) - exact) < 1e-10
    assert abs(v @ (weight * (weight @ h))) < 1e-10


def noise_of(problem, prec, branch, baseline, draws=20, repeats=500):
    """Root mean square noise of the estimated precision gradient, relative to the precision."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(repeats, draws, 4))
    factor = np.linalg.cholesky(prec)
    theta = problem.mean + np.linalg.solve(factor.T, noise.reshape(-1, 4).T).T.reshape(noise.shape)
    value = np.sum(stats.norm.logpdf(problem.y, theta @ problem.x.T, NOISE), axis=-1)
    if branch == "h":
        log_prior = stats.norm.logpdf(theta, 0, PRIOR_PREC**-0.5).sum(axis=-1)
        log_q = stats.norm.logpdf(noise).sum(axis=-1) + 0.5 * np.linalg.slogdet(prec)[1]
        value = value + log_prior - log_q
    if baseline:
        value = (value - value.mean(axis=1, keepdims=True)) * draws / (draws - 1)
    v = noise @ factor.T
    found = np.mean((prec - v[..., :, None] * v[..., None, :]) * value[..., None, None], axis=1)
    return np.sqrt(np.mean(np.var(found, axis=0)) / np.mean(problem.prec**2))


def test_h_branch_is_quieter_with_a_baseline(problem):
    """Errata 108: the promised order holds without a baseline only."""
    prec = 1.1 * problem.prec
    assert noise_of(problem, problem.prec, "h", baseline=True) < 1e-9
    assert noise_of(problem, problem.prec, "likelihood", baseline=True) > 0.3
    with_baseline = [noise_of(problem, prec, b, baseline=True) for b in ("h", "likelihood")]
    assert with_baseline[1] > 5 * with_baseline[0]
    raw = [noise_of(problem, prec, b, baseline=False) for b in ("h", "likelihood")]
    assert raw[1] < raw[0]
    assert raw[0] > 10 * with_baseline[1]


def test_scaling_the_precision_changes_no_step(problem, wide):
    """Errata 110: on c P the affine-invariant step is the same for every c, half of EMGVB's."""
    _, prec, _, grad_cov = wide
    cov, beta = np.linalg.inv(prec), 0.1

    def step(c):
        point = c * prec
        xi = beta * point @ (-cov @ grad_cov @ cov / c) @ point
        return (xi + 0.5 * xi @ np.linalg.solve(point, xi)) / c

    np.testing.assert_allclose(step(2.0), step(1.0), rtol=1e-10)
    xi = -beta * grad_cov
    np.testing.assert_allclose(step(2.0), xi + 0.5 * xi @ cov @ xi, atol=1e-9)
    fisher = beta * np.asarray(natural.natural_gradient_prec(grad_cov))
    np.testing.assert_allclose(fisher, 2 * xi, rtol=1e-12)
    assert apart(step(2.0), fisher + 0.5 * fisher @ cov @ fisher) > 0.4
