"""The survey's formulas as printed and as they should be (docs/errata.md), on exact answers.

Each test computes both on a problem small enough to know the answer: conjugate regression,
enumeration, quadrature or finite differences. The right one must hold to a tight tolerance and
the printed one must fail by the margin that docs/errata.md tells.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from pathlib import Path

import jax
import numpy as np
import optax
import problems
import pytest
from scipy import special, stats

from bayeslearn.algorithms.hmc import leapfrog
from bayeslearn.algorithms.metropolis_hastings import log_ratio
from bayeslearn.algorithms.ng_bbvi import adam
from bayeslearn.algorithms.vadam import Correction, std_from_scale, vadam_update
from bayeslearn.algorithms.vogn import vogn_update
from bayeslearn.geometry import natural, spd

ROOT = Path(__file__).parent.parent
NOISE, PRIOR_PREC = 0.7, 0.5  # of problems.regression()
STEPS = 400


@pytest.fixture(autouse=True)
def _double(x64):
    return


@pytest.fixture(scope="module")
def problem():
    return problems.regression()


def log_evidence(problem):
    cov = NOISE**2 * np.eye(len(problem.y)) + problem.x @ problem.x.T / PRIOR_PREC
    return stats.multivariate_normal(np.zeros(len(problem.y)), cov).logpdf(problem.y)


def kl_to_prior(mean, cov):
    size = len(mean)
    log_dets = size * np.log(PRIOR_PREC) + np.linalg.slogdet(cov)[1]
    return 0.5 * (PRIOR_PREC * (np.trace(cov) + mean @ mean) - size - log_dets)


def lower_bound(problem, mean, cov):
    residual = problem.y - problem.x @ mean
    squares = residual @ residual + np.trace(problem.x.T @ problem.x @ cov)
    log_likelihood = -0.5 * (len(residual) * np.log(2 * np.pi * NOISE**2) + squares / NOISE**2)
    return log_likelihood - kl_to_prior(mean, cov)


def hermite(mean, std, order=40):
    """Nodes (n, k) and weights of E_q for independent Gaussians."""
    x, w = np.polynomial.hermite_e.hermegauss(order)
    nodes = np.array(list(itertools.product(x, repeat=len(mean))))
    weights = np.array([np.prod(ws) for ws in itertools.product(w, repeat=len(mean))])
    return mean + std * nodes, weights / weights.sum()


def difference(function, at, h=1e-5):
    """Gradient by central differences."""
    at = np.asarray(at, float)
    return np.array(
        [(function(at + h * e) - function(at - h * e)) / (2 * h) for e in np.eye(len(at))]
    )


def random_spd(seed, size=3):
    root = np.random.default_rng(seed).normal(size=(size, size + 2))
    return root @ root.T


def apart(a, b):
    """Largest relative distance of a from b."""
    return np.max(np.abs(np.asarray(a) - b)) / np.max(np.abs(b))


# Section 1: likelihoods, the lower bound, prediction


def test_gaussian_likelihood_counts_outputs_not_weights():
    """Errata 5."""
    rng = np.random.default_rng(0)
    x, weights, cov = rng.normal(size=(5, 3)), rng.normal(size=(3, 2)), random_spd(1, 2)
    y = x @ weights + rng.normal(size=(5, 2))
    exact = sum(stats.multivariate_normal(x[i] @ weights, cov).logpdf(y[i]) for i in range(5))
    r = y - x @ weights
    rest = -2.5 * np.linalg.slogdet(cov)[1] - 0.5 * np.sum(r @ np.linalg.inv(cov) * r)
    right = -0.5 * r.size * np.log(2 * np.pi) + rest
    printed = -0.5 * len(y) * weights.size * np.log(2 * np.pi) + rest
    assert abs(right - exact) < 1e-10
    assert abs(exact - printed - 10 * np.log(2 * np.pi)) < 1e-10  # 18.4 nats


def test_independent_normal_inverse_wishart_is_not_conjugate():
    """Errata 7, in one dimension: y_i ~ N(t, v), v ~ IG(a, b), t ~ N(0, s2) or N(0, v / k)."""
    y = np.array([3.1, 2.2, 4.0, 3.3, 2.4, 3.6])
    a, b, s2 = 3.0, 2.0, 1.0
    k = b / (a - 1) / s2  # the same prior variance of t, at the prior mean of v
    t, log_v = np.linspace(-4, 8, 1201)[:, None], np.linspace(-4, 7, 1201)[None, :]
    v = np.exp(log_v)
    squares = sum((yi - t) ** 2 for yi in y)
    rest = -(a + len(y) / 2) * log_v - (b + 0.5 * squares) / v  # with the Jacobian of log v

    def expected_v(log_prior):
        weight = np.exp(log_prior + rest - np.max(log_prior + rest))
        return np.sum(weight * v) / np.sum(weight)

    dependent = expected_v(-0.5 * np.log(v) - 0.5 * k * t**2 / v)
    product = expected_v(-0.5 * t**2 / s2)
    n = len(y)
    b_n = b + 0.5 * np.sum((y - y.mean()) ** 2) + k * n * y.mean() ** 2 / (2 * (k + n))
    closed = b_n / (a + n / 2 - 1)
    assert abs(dependent / closed - 1) < 1e-6
    assert product / closed < 0.6


def test_prediction_variance_includes_the_noise(problem):
    """Errata 11: a new y is N(x mean, x cov x + noise^2), so coverage is exact."""
    epistemic = np.einsum("ni,ij,nj->n", problem.x, problem.cov, problem.x)
    total = epistemic + NOISE**2
    z = stats.norm.ppf(0.975)

    def coverage(variance):
        return np.mean(2 * stats.norm.cdf(z * np.sqrt(variance / total)) - 1)

    assert abs(coverage(total) - 0.95) < 1e-12
    assert coverage(epistemic) < 0.40


def test_lower_bound_has_the_log_likelihood(problem):
    """Errata 14: at q = posterior the integrand is log p(D) at every theta."""
    exact = log_evidence(problem)
    q = stats.multivariate_normal(problem.mean, problem.cov)
    prior = stats.multivariate_normal(np.zeros(4), np.eye(4) / PRIOR_PREC)
    for theta in np.random.default_rng(0).normal(size=(5, 4)):
        log_likelihood = stats.norm.logpdf(problem.y, problem.x @ theta, NOISE).sum()
        ratio = prior.logpdf(theta) - q.logpdf(theta)
        assert abs(ratio + log_likelihood - exact) < 1e-8
    assert abs(lower_bound(problem, problem.mean, problem.cov) - exact) < 1e-9
    # E_q[log p - log q + p(D | theta)] prefers the prior, where it is p(D) > 0, to the posterior.
    best = np.exp(stats.norm.logpdf(problem.y, problem.x @ problem.mean, NOISE).sum() + 1)
    assert -kl_to_prior(problem.mean, problem.cov) + best < -5
    assert lower_bound(problem, np.zeros(4), np.eye(4) / PRIOR_PREC) < exact - 100


def test_lower_bound_is_maximised(problem):
    """Errata 15: log p(D) - bound = KL(q | posterior), nothing at the posterior, else positive."""
    rng = np.random.default_rng(1)
    exact = log_evidence(problem)
    for scale in (0.1, 1.0, 1000.0):
        mean, cov = problem.mean + scale * rng.normal(size=4), scale * random_spd(2, 4)
        gap = mean - problem.mean
        kl = np.trace(problem.prec @ cov) + gap @ problem.prec @ gap - 4
        kl = 0.5 * (kl - np.linalg.slogdet(problem.prec @ cov)[1])
        bound = lower_bound(problem, mean, cov)
        assert abs((exact - bound) / kl - 1) < 1e-8
        assert kl > 1
    assert kl > 1e6  # a minimiser of the bound would go on from here


# Section 2: sampling


def kernel(g, accept):
    """The transition matrix of proposals g[old, new], accepted with accept[old, new]."""
    matrix = g * np.minimum(1.0, accept)
    np.fill_diagonal(matrix, 0.0)
    return matrix + np.diag(1.0 - matrix.sum(axis=1))


def test_metropolis_target_is_likelihood_times_prior():
    """Errata 18: p(theta | y) p(theta) counts the prior twice."""
    theta = np.linspace(-6, 6, 61)
    log_prior, log_likelihood = stats.norm.logpdf(theta, 0, 1), stats.norm.logpdf(2.0, theta, 1)
    near = np.abs(np.subtract.outer(np.arange(61), np.arange(61))) <= 5
    g = np.where(near, 1.0 / 11, 0.0)
    g[np.diag_indices(61)] += 1.0 - g.sum(axis=1)  # symmetric: what leaves the range stays
    posterior = special.softmax(log_prior + log_likelihood)

    def moved(log_f):
        ratio = np.asarray(log_ratio(log_f[None, :], log_f[:, None], 0.0, 0.0))
        return posterior @ kernel(g, np.exp(ratio)) - posterior

    assert np.abs(moved(log_prior + log_likelihood)).max() < 1e-14
    printed = log_prior + log_likelihood + log_prior
    assert np.abs(moved(printed)).max() > 1e-3
    # where such a chain settles: precision 3 instead of 2, mean 2/3 instead of 1
    wrong = special.softmax(printed)
    assert abs(posterior @ theta - 1) < 1e-6
    assert abs(wrong @ theta - 2 / 3) < 1e-6
    assert abs(posterior @ (theta - posterior @ theta) ** 2 - 1 / 2) < 1e-6
    assert abs(wrong @ (theta - wrong @ theta) ** 2 - 1 / 3) < 1e-6


def test_metropolis_hastings_acceptance():
    """Errata 21: both of the text's readings of alpha, with an asymmetric proposal."""
    rng = np.random.default_rng(0)
    log_f = 2.0 * rng.normal(size=6)
    g = rng.uniform(0.05, 1.0, size=(6, 6)) ** 2
    g /= g.sum(axis=1, keepdims=True)
    target = special.softmax(log_f)
    right = log_ratio(log_f[None, :], log_f[:, None], np.log(g).T, np.log(g))
    alpha = np.exp(log_f[None, :] - log_f[:, None])
    rejects_with_alpha = np.where(alpha > 1, 1.0, 1.0 - alpha)

    def broken(accept):
        return np.abs(target @ kernel(g, accept) - target).max()

    assert broken(np.exp(np.asarray(right))) < 1e-14
    assert broken(alpha) > 0.02
    symmetric = np.full((6, 6), 1 / 6)
    assert np.abs(target @ kernel(symmetric, alpha) - target).max() < 1e-14
    assert np.abs(target @ kernel(symmetric, rejects_with_alpha) - target).max() > 0.1


def test_metropolis_suffers_from_dimension():
    """Errata 22: on N(0, I_d) a walk of scale s is accepted with E[2 Phi(-s |z| / 2)]."""

    def acceptance(d, s, power=0):
        p = (np.arange(4000) + 0.5) / 4000
        length = np.sqrt(stats.chi2.ppf(p, d))
        return np.mean(length**power * 2 * stats.norm.cdf(-0.5 * s * length))

    fixed = [acceptance(d, 0.5) for d in (1, 10, 100, 1000)]
    np.testing.assert_allclose(fixed, [0.844, 0.448, 0.014, 0.0], atol=1e-3)
    # at the best scale it is the squared jump of a coordinate that falls, like 1/d
    scale = {d: 2.38 / np.sqrt(d) for d in (10, 1000)}
    jump = {d: s**2 * acceptance(d, s, power=2) / d for d, s in scale.items()}
    assert 0.2 < acceptance(1000, scale[1000]) < 0.26
    assert 80 < jump[10] / jump[1000] < 120


def test_mass_matrix_is_the_inverse_covariance():
    """Errata 23: leapfrog sees the target of precision P as one of M^-1 P."""
    cov = np.diag([1.0, 1e-4])
    prec = np.linalg.inv(cov)

    def condition(mass):
        return np.linalg.cond(np.linalg.solve(mass, prec))

    assert abs(condition(np.linalg.inv(cov)) - 1) < 1e-12
    assert abs(condition(np.eye(2)) / 1e4 - 1) < 1e-9
    assert abs(condition(cov) / 1e8 - 1) < 1e-9


PREC, MODE = np.array([[2.0, 0.6], [0.6, 1.0]]), np.array([0.8, -0.4])


def energy_change(sign=1.0, force=-1.0, eps=0.1, steps=10):
    """H after leapfrog minus H before, for N(MODE, PREC^-1) and M = I."""
    theta, rho = np.array([1.0, -0.5]), np.array([0.3, 0.8])

    def energy(theta, rho):
        return 0.5 * ((theta - MODE) @ PREC @ (theta - MODE) + rho @ rho)

    before = energy(theta, rho)
    for _ in range(steps):
        rho = rho + 0.5 * eps * force * PREC @ (theta - MODE)
        theta = sign * theta + eps * rho
        rho = rho + 0.5 * eps * force * PREC @ (theta - MODE)
    return energy(theta, rho) - before, theta


def test_leapfrog_position_sign():
    """Errata 25."""
    right, end = energy_change()
    with jax.disable_jit():
        ours, *_ = leapfrog(
            lambda w: (-0.5 * (w - MODE) @ PREC @ (w - MODE), -PREC @ (w - MODE)),
            lambda rho: rho,
            np.array([1.0, -0.5]),
            np.array([0.3, 0.8]),
            np.float64(0.0),
            -PREC @ (np.array([1.0, -0.5]) - MODE),
            0.1,
            10,
        )
    np.testing.assert_allclose(ours, end, atol=1e-12)
    assert abs(right) < 3e-3
    assert abs(energy_change(eps=0.05, steps=20)[0]) < 0.3 * abs(right)  # of second order
    assert abs(energy_change(sign=-1.0)[0]) > 0.4
    assert abs(energy_change(sign=-1.0, eps=0.05, steps=20)[0]) > 0.4  # and it stays


def test_hamiltonian_force_is_the_log_target_gradient(problem):
    """Errata 24: -dV/dtheta is + the gradient of log p(D | theta) + log p(theta)."""
    theta = problem.mean + 0.3

    def potential(w):
        log_likelihood = stats.norm.logpdf(problem.y, problem.x @ w, NOISE).sum()
        return -log_likelihood + 0.5 * PRIOR_PREC * w @ w

    force = -difference(potential, theta)
    likelihood = problem.x.T @ (problem.y - problem.x @ theta) / NOISE**2
    np.testing.assert_allclose(force, likelihood - PRIOR_PREC * theta, rtol=1e-6)
    assert apart(-likelihood, force) > 1.9
    assert apart(likelihood, force) > 1e-3  # and without the prior
    assert energy_change(force=1.0)[0] > 1  # the printed sign drives uphill


def test_hmc_accepts_lower_energy():
    """Errata 26: one step from N(0, 1) x N(0, 1), by quadrature, must keep E[theta^2] = 1."""
    grid = np.linspace(-9, 9, 901)
    theta, rho = np.meshgrid(grid, grid)
    weight = np.exp(-0.5 * (theta**2 + rho**2))
    weight /= weight.sum()
    eps = 1.2
    half = rho - 0.5 * eps * theta
    end = theta + eps * half
    change = 0.5 * (end**2 + (half - 0.5 * eps * end) ** 2 - theta**2 - rho**2)

    def second_moment(log_accept):
        accept = np.exp(np.minimum(0.0, log_accept))
        return np.sum(weight * (accept * end**2 + (1 - accept) * theta**2))

    assert abs(second_moment(-change) - 1) < 1e-5
    assert second_moment(change) > 1.15


# Section 3: Monte Carlo dropout


def masks(size, keep):
    z = np.array(list(itertools.product((0.0, 1.0), repeat=size)))
    return z, keep ** z.sum(axis=1) * (1 - keep) ** (size - z.sum(axis=1))


def test_dropout_p_is_the_keep_probability():
    """Errata 29: E|W|^2 and the mean output over all masks."""
    rng = np.random.default_rng(0)
    matrix, x, keep = rng.normal(size=(3, 6)), rng.normal(size=6), 0.8
    z, weight = masks(6, keep)
    squares = weight @ np.sum((matrix * z[:, None, :]) ** 2, axis=(1, 2))
    outputs = weight @ ((z * x) @ matrix.T)
    assert abs(keep * np.sum(matrix**2) / squares - 1) < 1e-12
    np.testing.assert_allclose(outputs, keep * matrix @ x, rtol=1e-12)
    drop = 1 - keep  # what section 3's opening calls p
    assert abs(drop * np.sum(matrix**2) / squares - 0.25) < 1e-12
    assert apart(drop * matrix @ x, outputs) > 0.7


@pytest.fixture(scope="module")
def dropout_network():
    """Outputs of a one-hidden-layer network under all masks, with their probabilities."""
    rng = np.random.default_rng(3)
    hidden, out = np.maximum(rng.normal(size=6), 0.1), rng.normal(size=6)
    z, weight = masks(6, 0.8)
    return z @ (hidden * out), weight, np.sum(hidden * out)


def test_dropout_masks_stay_on_for_prediction(dropout_network):
    """Errata 30."""
    outputs, weight, all_on = dropout_network
    mean = weight @ outputs
    assert weight @ (outputs - mean) ** 2 > 0.1  # the spread that a single pass does not have
    assert abs(all_on / mean - 1 / 0.8) < 1e-12


def test_dropout_variance_has_the_noise(dropout_network):
    """Errata 36: against the moments of the exact mixture density."""
    outputs, weight, _ = dropout_network
    tau = 0.25
    y = np.linspace(-40, 40, 8001)
    density = weight @ stats.norm.pdf(y[None, :], outputs[:, None], tau**-0.5)
    density /= density.sum()
    mean = density @ y
    exact = density @ (y - mean) ** 2
    passes = weight @ outputs**2 - (weight @ outputs) ** 2
    assert abs((1 / tau + passes) / exact - 1) < 1e-9
    assert passes / exact < 0.5


def test_dropout_objective_is_a_loss(problem):
    """Errata 35: eq. (38) of a linear network has one minimum, the ridge solution."""
    keep, l2, tau = 0.8, 0.5, 1 / NOISE**2
    x, y = problem.x, problem.y
    z, weight = masks(4, keep)
    gram = x.T @ x
    prior = keep * l2 / tau * np.eye(4)
    curvature = keep**2 * gram + keep * (1 - keep) * np.diag(np.diag(gram)) + prior

    def loss(m):
        squares = np.sum((y - (m * z) @ x.T) ** 2, axis=1)
        return (0.5 * weight @ squares + 0.5 * m @ prior @ m) / len(y)

    def gradient(m):
        return (curvature @ m - keep * x.T @ y) / len(y)

    np.testing.assert_allclose(gradient(np.ones(4)), difference(loss, np.ones(4)), rtol=1e-6)
    best = np.linalg.solve(curvature, keep * x.T @ y)
    down, up = np.ones(4), np.ones(4)
    for _ in range(STEPS):
        down, up = down - 0.2 * gradient(down), up + 0.2 * gradient(up)
    np.testing.assert_allclose(down, best, rtol=1e-6)
    assert loss(up) > 1e6 * loss(best)


def test_dropout_penalty_needs_well_separated_modes():
    """Errata 34: d KL / dm of p N(m, s^2) + (1 - p) N(0, s^2) from N(0, 1/l^2) against p l^2 m."""
    keep, precision, std = 0.8, 1.5, 0.05
    w = np.linspace(-3, 3, 60_001)

    def divergence(m):
        q = keep * stats.norm.pdf(w, m[0], std) + (1 - keep) * stats.norm.pdf(w, 0, std)
        inside = special.xlogy(q, q) - q * stats.norm.logpdf(w, 0, precision**-0.5)
        return np.sum(inside) * (w[1] - w[0])

    def ratio(m):
        return difference(divergence, [m], h=1e-4)[0] / (keep * precision * m)

    assert abs(ratio(1.0) - 1) < 1e-6
    assert ratio(std) < -40  # near the origin the true slope even points the other way


# Section 4: Bayes by Backprop


def test_backprop_rho_has_its_own_gradient(problem):
    """Errata 42, with the exact expected gradients of the mean-field problem."""
    diagonal = np.diag(problem.prec)
    start = problem.mean + np.array([0.5, -0.3, 0.2, -0.6])

    def run(printed):
        mean, rho = start.copy(), np.full(4, -3.0)
        for _ in range(20 * STEPS):
            std = np.logaddexp(0.0, rho)
            grad_mean = problem.prec @ (mean - problem.mean)
            grad_rho = (diagonal * std - 1 / std) * special.expit(rho)
            mean = mean - 2e-3 * grad_mean
            rho = rho - 2e-3 * (grad_mean if printed else grad_rho)
        return mean, rho, np.logaddexp(0.0, rho)

    mean, _, std = run(printed=False)
    np.testing.assert_allclose(mean, problem.mean, atol=1e-8)
    np.testing.assert_allclose(std**2, 1 / diagonal, rtol=1e-6)
    _, rho, std = run(printed=True)
    # rho ends where the mean's way leads it, whatever the data say about the spread
    np.testing.assert_allclose(rho, -3.0 + problem.mean - start, atol=1e-8)
    assert np.max(np.abs(np.log(std**2 * diagonal))) > np.log(3)


def test_minibatches_share_the_complexity_cost():
    """Errata 44: one weight, data precision d, prior precision lam, the KL counted c times."""
    data_prec, lam, batches = 200.0, 1.0, 10

    def best_variance(counted):
        var = np.exp(np.linspace(np.log(1e-4), np.log(1.0), 200_001))
        loss = 0.5 * data_prec * var + counted * 0.5 * (lam * var - np.log(var))
        return var[np.argmin(loss)]

    exact = 1 / (data_prec + lam)
    assert abs(best_variance(sum(np.full(batches, 1 / batches))) / exact - 1) < 1e-3
    assert 9 < best_variance(batches) / exact < 10


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
    """Errata 78: VOGN's fixed point against mean field, the noise scale held `factor` too large."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(5000, 4))
    held = 0.7 * factor
    y = x @ rng.normal(size=4) + 0.7 * rng.normal(size=5000)
    prec = x.T @ x / held**2 + PRIOR_PREC * np.eye(4)
    residual = y - x @ np.linalg.solve(prec, x.T @ y / held**2)
    var = 1 / np.diag(prec)
    for _ in range(50):  # s = E_q[mean_i g_i^2], g_i = x_i (residual at theta) / held^2
        squares = residual**2 + x**2 @ var
        var = 1 / ((x**2).T @ squares / held**4 + PRIOR_PREC)
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


# The page itself


def mentioned():
    text = (ROOT / "docs" / "errata.md").read_text()
    return text, set(re.findall(r"(tests/[\w/]+\.py)::(\w+)", text))


@functools.cache
def defined(path):
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_test_named_on_the_page_exists():
    _, names = mentioned()
    assert len(names) > 40
    assert not [f"{path}::{name}" for path, name in sorted(names) if name not in defined(path)]


def test_every_entry_has_a_test_and_every_test_an_entry():
    text, names = mentioned()
    wrong = {5, 11, 14, 15, 18, 21, 22, 24, 25, 26, 29, 30, 35, 36, 42, 46, 49, 58, 60, 61, 64}
    wrong |= {70, 72, 73, 74, 76, 79, 80, 81, 85, 93, 97, 98, 101, 105, 109}
    judged = {7, 23, 34, 44, 45, 59, 62, 66, 78, 84, 90, 92, 108, 110}
    entries = re.split(r"^### ", text.split("\n## Slips")[0], flags=re.MULTILINE)[1:]
    numbers = [set(map(int, re.findall(r"\d+", e.split(". ")[0]))) for e in entries]
    assert wrong | judged <= set().union(*numbers)
    assert not [entry.splitlines()[0] for entry in entries if "::test_" not in entry]
    own = {name for name in defined("tests/test_errata.py") if name.startswith("test_")}
    told = {name for path, name in names if path == "tests/test_errata.py"}
    assert {name for name in own - told if not name.startswith("test_every_")} == set()


def test_every_erratum_cited_in_the_code_is_on_the_page():
    text, _ = mentioned()
    rows = re.findall(r"^(?:### |\| )(\d[\d, ]*)", text, flags=re.MULTILINE)
    told = {int(number) for row in rows for number in re.findall(r"\d+", row)}
    sources = (ROOT / "bayeslearn").rglob("*.py")
    cited = {int(n) for path in sources for n in re.findall(r"errata (\d+)", path.read_text())}
    assert len(cited) > 20
    assert cited <= told
    assert told == set(range(1, 112))  # the audit's numbers, each told once or more
