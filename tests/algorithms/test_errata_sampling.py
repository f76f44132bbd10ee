"""The survey's formulas as printed and as they should be (docs/errata.md), on exact answers.

Each test computes both on a problem small enough to know the answer: conjugate regression,
enumeration, quadrature or finite differences. The right one must hold to a tight tolerance and
the printed one must fail by the margin that docs/errata.md gives.

Likelihoods, the lower bound, sampling, dropout and Bayes by Backprop.
"""

from __future__ import annotations

import itertools

import jax
import numpy as np
import problems
import pytest
from formulas import (
    NOISE,
    PRIOR_PREC,
    apart,
    difference,
    kl_to_prior,
    log_evidence,
    lower_bound,
    random_spd,
)
from scipy import special, stats

from bayeslearn.algorithms.hmc import leapfrog
from bayeslearn.algorithms.metropolis_hastings import log_ratio

STEPS = 400


@pytest.fixture(autouse=True)
def _double(x64):
    return


@pytest.fixture(scope="module")
def problem():
    return problems.regression()


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
    assert weight @ (outputs - mean) ** 2 > 0.1  # the variance that a single pass does not have
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
    # rho ends where the mean's way leads it, whatever the data say about the std
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
