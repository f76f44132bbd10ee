"""NGVI, VON, QBVI, MGVB, EMGVB: each is what its paper means, with guards off and exactly."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn.algorithms.gaussian import GaussianState
from bayeslearn.algorithms.mgvb import manifold_step, no_momentum
from bayeslearn.algorithms.ngvi import natural_step
from bayeslearn.algorithms.qbvi import exponential_family_step
from bayeslearn.errors import ArgumentError
from bayeslearn.families import Gamma
from bayeslearn.geometry import spd
from bayeslearn.geometry.frame import BlockFrame, DiagonalFrame, Spectrum

pytestmark = pytest.mark.usefixtures("x64")


@pytest.fixture(scope="module")
def problem():
    return problems.regression()


def wide_frame(problem, seed=1):
    """A frame that is not the posterior's, with a factor that is not triangular."""
    rng = np.random.default_rng(seed)
    factor = jnp.asarray(0.3 * np.eye(4) + 0.05 * rng.normal(size=(4, 4)))
    mean = jnp.asarray(problem.mean + rng.normal(size=4)).reshape(1, 4)
    params = {"network": {"w": mean}, "likelihood": {}}
    return BlockFrame(params, (factor,), jnp.linalg.slogdet(factor)[1], ((0,),))


def exact_gradients(problem, frame):
    """Gradients of the lower bound of the conjugate model, in the frame."""
    c = frame.factors[0]
    mean = frame.mean["network"]["w"].ravel()
    g = c.T @ (jnp.asarray(problem.prec) @ (jnp.asarray(problem.mean) - mean))
    whole = 0.5 * (jnp.eye(4) - c.T @ jnp.asarray(problem.prec) @ c)
    return (g,), frame.spectrum((whole,))


def prec_of(frame):
    root = np.linalg.inv(np.asarray(frame.factors[0]))
    return root.T @ root


def test_one_natural_step_of_length_one_solves_a_conjugate_model(problem):
    frame = wide_frame(problem)
    mean, cov = exact_gradients(problem, frame)
    new, is_clipped, _ = natural_step(frame, mean, cov, jnp.asarray(1.0), is_new=True, guards=False)
    np.testing.assert_allclose(new.mean["network"]["w"].ravel(), problem.mean, atol=1e-10)
    np.testing.assert_allclose(prec_of(new), problem.prec, rtol=1e-10)
    assert not is_clipped
    old, _, _ = natural_step(frame, mean, cov, jnp.asarray(1.0), is_new=False, guards=False)
    assert np.abs(np.asarray(old.mean["network"]["w"]).ravel() - problem.mean).max() > 1.0


@pytest.mark.parametrize("name", ["ngvi", "von"])
def test_a_step_of_length_one_through_the_algorithm(problem, name):
    target, params = problem.model.bind((problem.x, problem.y), jax.random.key(0))
    algorithm = bl.ALGORITHMS[name](
        gradient="hessian", learning_rate=1.0, power=0.0, guards=False, num_draws=2
    )
    state = algorithm.init(jax.random.key(1), target, params)
    wide = BlockFrame(
        state.frame.mean, (3.0 * state.frame.factors[0],), state.frame.log_det, ((0,),)
    )
    state, _ = algorithm.step(jax.random.key(2), target, state._replace(frame=wide), target.data)
    np.testing.assert_allclose(prec_of(state.frame), problem.prec, rtol=1e-9)


def test_von_is_ngvi_with_the_hessian(problem):
    target, params = problem.model.bind((problem.x, problem.y), jax.random.key(0))
    options = {"learning_rate": 0.2, "decay_steps": 10.0, "power": 0.7, "num_draws": 2}
    first = bl.VON(**options)
    second = bl.NGVI(gradient="hessian", **options)
    states = [a.init(jax.random.key(1), target, params) for a in (first, second)]
    for t in range(3):
        key = jax.random.key(t)
        states = [
            a.step(key, target, s, target.data)[0]
            for a, s in zip((first, second), states, strict=True)
        ]
    np.testing.assert_allclose(states[0].frame.factors[0], states[1].frame.factors[0], atol=1e-12)


def test_vons_mean_hears_more_draws_than_have_a_hessian():
    rng = np.random.default_rng(0)
    model = bl.Model(bl.networks.MLP([2]), bl.likelihoods.Gaussian(), dtype="float64")
    target, params = model.bind((rng.normal(size=(9, 1)), rng.normal(size=9)), jax.random.key(0))
    state = bl.VON().init(jax.random.key(1), target, params)
    estimates = [
        bl.VON(num_draws=num, guards=False).estimate(jax.random.key(2), target, state, target.data)
        for num in (1, 2)
    ]
    np.testing.assert_array_equal(estimates[0].mean, estimates[1].mean)
    assert (
        np.abs(
            state.frame.dense(estimates[0].cov)[0] - state.frame.dense(estimates[1].cov)[0]
        ).max()
        > 0.1
    )


def test_von_in_its_papers_form(problem):
    """S <- (1 - beta) S + beta H, mean <- mean - beta (S + l I)^-1 (g + l mean), exact g and H."""
    rows, lam, beta = len(problem.y), 0.5, 0.3
    hessian = problem.x.T @ problem.x / 0.7**2 / rows
    frame = wide_frame(problem)
    s = prec_of(frame) / rows - lam / rows * np.eye(4)
    mean = np.asarray(frame.mean["network"]["w"]).ravel()
    for _ in range(5):
        new_s = (1 - beta) * s + beta * hessian
        residual = problem.y - problem.x @ mean
        g = -problem.x.T @ residual / 0.7**2 / rows
        new_mean = mean - beta * np.linalg.solve(
            new_s + lam / rows * np.eye(4), g + lam / rows * mean
        )
        gradients = exact_gradients(problem, frame)
        frame, _, _ = natural_step(frame, *gradients, jnp.asarray(beta), is_new=True, guards=False)
        s, mean = new_s, new_mean
        np.testing.assert_allclose(frame.mean["network"]["w"].ravel(), mean, atol=1e-10)
        np.testing.assert_allclose(prec_of(frame), rows * (s + lam / rows * np.eye(4)), rtol=1e-10)


@pytest.mark.parametrize("is_precision", [True, False])
def test_the_moving_frame_is_the_transported_form(problem, is_precision):
    """Forty steps with momentum against sections 15 and 16, retraction and transport as printed."""
    beta, omega = 0.05, 0.4
    frame = wide_frame(problem)
    state = GaussianState(frame, no_momentum(frame), jnp.zeros((), jnp.int32))
    stretch = (
        (lambda b: 1.0 / jnp.sqrt(spd.retraction_eigenvalues(b)))
        if is_precision
        else (lambda b: jnp.sqrt(spd.retraction_eigenvalues(b)))
    )
    mean = np.asarray(frame.mean["network"]["w"]).ravel()
    point = prec_of(frame) if is_precision else np.linalg.inv(prec_of(frame))
    momentum = mean_momentum = None
    before = point
    for t in range(40):
        gradients = exact_gradients(problem, state.frame)
        factor = -2.0 if is_precision else 1.0
        state, _, _ = manifold_step(
            state,
            gradients[0],
            gradients[1].scaled(factor),
            beta=jnp.asarray(beta),
            momentum=omega,
            stretch=stretch,
            guards=False,
        )
        cov = np.linalg.inv(point) if is_precision else point
        grad_cov = 0.5 * (np.linalg.inv(cov) - problem.prec)
        g = -2.0 * grad_cov if is_precision else cov @ grad_cov @ cov
        g_mean = cov @ problem.prec @ (problem.mean - mean)
        if t == 0:
            momentum, mean_momentum = g, g_mean
        else:
            carried = np.asarray(
                spd.transport(jnp.asarray(before), jnp.asarray(point), jnp.asarray(momentum))
            )
            momentum = omega * carried + (1 - omega) * g
            mean_momentum = omega * mean_momentum + (1 - omega) * g_mean
        before = point
        step = beta * momentum
        point = point + step + 0.5 * step @ np.linalg.solve(point, step)
        mean = mean + beta * mean_momentum
    found = prec_of(state.frame)
    np.testing.assert_allclose(found if is_precision else np.linalg.inv(found), point, rtol=1e-10)
    np.testing.assert_allclose(state.frame.mean["network"]["w"].ravel(), mean, atol=1e-10)


def test_emgvb_without_momentum_is_the_ibayes_rule(problem):
    """S <- S + beta G + beta^2 G S^-1 G / 2 with G = -2 grad_cov (Lin et al. 2020)."""
    beta = 0.1
    frame = wide_frame(problem)
    state = GaussianState(frame, (), jnp.zeros((), jnp.int32))
    prec = prec_of(frame)
    for _ in range(10):
        gradients = exact_gradients(problem, state.frame)
        state, _, _ = manifold_step(
            state,
            gradients[0],
            gradients[1].scaled(-2.0),
            beta=jnp.asarray(beta),
            momentum=None,
            stretch=lambda b: 1.0 / jnp.sqrt(spd.retraction_eigenvalues(b)),
            guards=False,
        )
        g = problem.prec - prec
        prec = prec + beta * g + 0.5 * beta**2 * g @ np.linalg.solve(prec, g)
    np.testing.assert_allclose(prec_of(state.frame), prec, rtol=1e-10)


def test_qbvi_solves_gamma_poisson_in_one_step():
    """Prior Gamma(2, 1.5), counts y: the posterior is Gamma(2 + sum y, 1.5 + n)."""
    counts = np.array([3.0, 1.0, 4.0, 2.0])
    prior, q = Gamma(jnp.asarray(2.0), jnp.asarray(1.5)), Gamma(jnp.asarray(5.0), jnp.asarray(4.0))

    def expected_log_likelihood(natural):
        # E_q[sum y log(theta) - n theta] = sum(y) m1 - n m2, in expectation parameters
        mean_log, mean = Gamma.from_natural(natural).expectation()
        return counts.sum() * mean_log - len(counts) * mean

    # grad_m E_q[l] = F^-1 grad_natural E_q[l]
    natural = q.natural()
    gradient = jax.grad(expected_log_likelihood)(natural)
    flat = np.array([np.asarray(v) for v in jax.tree.leaves(gradient)])
    solved = np.linalg.solve(np.asarray(q.fisher()), flat)
    in_expectation = jax.tree.unflatten(jax.tree.structure(natural), list(jnp.asarray(solved)))
    new = Gamma.from_natural(exponential_family_step(natural, prior.natural(), in_expectation, 1.0))
    np.testing.assert_allclose(new.shape, 2.0 + counts.sum(), atol=1e-8)
    np.testing.assert_allclose(new.rate, 1.5 + len(counts), atol=1e-8)


def test_guards_off_is_the_bare_update_bit_for_bit_and_on_they_hold(problem):
    frame = wide_frame(problem)
    mean, cov = exact_gradients(problem, frame)
    small = jnp.asarray(1e-3)
    on, is_clipped, _ = natural_step(frame, mean, cov, small, is_new=True, guards=True)
    off, _, _ = natural_step(frame, mean, cov, small, is_new=True, guards=False)
    assert not is_clipped
    np.testing.assert_array_equal(on.factors[0], off.factors[0])
    np.testing.assert_array_equal(on.mean["network"]["w"], off.mean["network"]["w"])
    clipped, is_clipped, largest = natural_step(frame, mean, cov, jnp.asarray(1.0), True, True)
    assert is_clipped
    assert largest > 0.5
    change = np.linalg.eigvals(np.linalg.solve(prec_of(frame), prec_of(clipped))).real
    assert change.max() < 1.5 + 1e-9
    assert change.min() > 1 / 1.5 - 1e-9


def test_a_block_is_held_as_a_whole_and_a_diagonal_weight_by_weight():
    """Clipped eigenvalues of a noisy block would be steps of full length in random directions."""
    values, zero = jnp.asarray([-2.0, 0.1, 0.9]), jnp.zeros((), jnp.float64)
    block, smallest, largest = Spectrum((values,), (jnp.eye(3),), zero).clipped(-1 / 3, 0.5)
    np.testing.assert_allclose(block.values[0], np.asarray(values) / 6, rtol=1e-12)
    assert (float(smallest), float(largest)) == (-2.0, 0.9)
    thin, *_ = Spectrum({"w": values}, None, zero).clipped(-1 / 3, 0.5)
    np.testing.assert_allclose(thin.values["w"], [-1 / 3, 0.1, 0.5], rtol=1e-12)
    shifted, *_ = Spectrum((values[1:],), (jnp.eye(3)[:, 1:],), zero + 1.0).clipped(-1 / 3, 0.5)
    np.testing.assert_allclose(shifted.values[0] + shifted.shift, [1.1 / 3.8, 0.5], rtol=1e-12)


def test_diagonal_frame_is_the_full_one_on_diagonal_matrices():
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=4), rng.uniform(0.5, 2.0, size=4)
    values, step = rng.uniform(-0.3, 0.3, size=4), rng.normal(size=4)
    thin = DiagonalFrame.from_prec({"w": jnp.asarray(mean)}, {"w": jnp.asarray(1 / std**2)})
    full = BlockFrame(
        {"w": jnp.asarray(mean)},
        (jnp.diag(jnp.asarray(std)),),
        jnp.asarray(np.log(std).sum()),
        ((0,),),
    )
    zero = jnp.zeros((), jnp.float64)
    a = thin.move(
        {"w": jnp.asarray(step)}, Spectrum({"w": jnp.asarray(values)}, None, zero), jnp.exp
    )
    b = full.move(
        (jnp.asarray(step),), Spectrum((jnp.asarray(values),), (jnp.eye(4),), zero), jnp.exp
    )
    np.testing.assert_allclose(a.mean["w"], b.mean["w"], atol=1e-12)
    np.testing.assert_allclose(a.std["w"], np.diag(b.factors[0]), atol=1e-12)
    np.testing.assert_allclose(a.log_det, b.log_det, atol=1e-12)


def test_a_covariance_that_cannot_fit_is_refused_at_once(compiles):
    x = np.zeros((10, 800))
    model = bl.Model(bl.networks.MLP([100]), bl.likelihoods.Gaussian())
    with compiles() as seen, pytest.raises(ArgumentError, match=r"80202 x 80202 .* GB"):
        bl.fit(model, bl.EMGVB(), (x, np.arange(10.0)), seed=0)
    assert "_steps" not in " ".join(seen)


def test_an_estimator_that_does_not_go_with_the_covariance_is_refused():
    with pytest.raises(ArgumentError, match=r"`gradient` must .* got 'hutchinson'"):
        bl.NGVI(gradient="hutchinson")
    bl.NGVI(gradient="hutchinson", covariance="diagonal")
