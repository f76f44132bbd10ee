"""The three estimators of the lower bound's gradients against each other and exact answers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.families import FullGaussian
from bayeslearn.geometry.frame import BlockFrame, DiagonalFrame
from bayeslearn.gradients import whitened

DRAWS = 4000


pytestmark = pytest.mark.usefixtures("x64")


@pytest.fixture(scope="module")
def quadratic():
    """log p(D, w) is a Gaussian of precision A around b, so every gradient is known."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3))
    prec, mode = root @ root.T + np.eye(3), rng.normal(size=3)

    def log_density(params):
        v = jnp.concatenate([params["a"], params["b"][None]]) - mode
        return -0.5 * v @ prec @ v

    target = bl.Target.from_log_density(log_density, {"a": jnp.zeros(2), "b": jnp.zeros(())})
    return target, prec, mode


def frame_of(mean, cov, is_full):
    params = {"a": jnp.asarray(mean[:2]), "b": jnp.asarray(mean[2])}
    if is_full:
        return BlockFrame.from_prec(params, (jnp.linalg.inv(jnp.asarray(cov)),), ((0, 1),))
    variance = np.diag(cov)
    prec = {"a": jnp.asarray(1 / variance[:2]), "b": jnp.asarray(1 / variance[2])}
    return DiagonalFrame.from_prec(params, prec)


def dense(frame, estimate):
    """Gradients in ordinary coordinates: C^-T g, C^-T G C^-1."""
    if isinstance(frame, BlockFrame):
        root = np.linalg.inv(np.asarray(frame.factors[0]))
        mean, cov = np.asarray(estimate.mean[0]), np.asarray(frame.dense(estimate.cov)[0])
        return root.T @ mean, root.T @ cov @ root
    std = np.asarray(tree.ravel(frame.std))
    mean, cov = tree.ravel(estimate.mean), tree.ravel(frame.dense(estimate.cov))
    return np.asarray(mean) / std, np.asarray(cov) / std**2


@pytest.mark.parametrize("is_full", [True, False])
@pytest.mark.parametrize("gradient", ["score", "reparam"])
def test_estimators_are_unbiased(quadratic, gradient, is_full):
    target, prec, mode = quadratic
    mean, cov = mode + 0.3, np.diag([0.5, 0.2, 0.4]) + 0.05 * is_full
    frame = frame_of(mean, cov, is_full)

    def one(key):
        estimate = whitened.estimate(key, target, frame, None, gradient=gradient, num_draws=8)
        whole = estimate.cov
        return estimate.mean, frame.dense(whole), estimate.elbo

    means, covs, elbos = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), DRAWS))
    exact_mean = -prec @ (mean - mode)
    exact_cov = 0.5 * (np.linalg.inv(cov) - prec)
    if is_full:
        c = np.asarray(frame.factors[0])
        wanted = [c.T @ exact_mean, c.T @ exact_cov @ c]
        found = [np.asarray(means[0]), np.asarray(covs[0])]
    else:
        std = np.sqrt(np.diag(cov))
        wanted = [std * exact_mean, std**2 * np.diag(exact_cov)]
        found = [np.asarray(jax.vmap(tree.ravel)(means)), np.asarray(jax.vmap(tree.ravel)(covs))]
    entropy = 0.5 * np.linalg.slogdet(2 * np.pi * np.e * cov)[1]
    offset = mean - mode
    wanted.append(entropy - 0.5 * (offset @ prec @ offset + np.trace(prec @ cov)))
    found.append(np.asarray(elbos))
    for values, exact in zip(found, wanted, strict=True):
        error = values.std(axis=0, ddof=1) / np.sqrt(DRAWS)
        z = (values.mean(axis=0) - exact) / error
        assert np.abs(z).max() < 4.5, z


def test_the_hessian_form_is_exact_on_a_quadratic(quadratic):
    target, prec, mode = quadratic
    cov = np.diag([0.5, 0.2, 0.4]) + 0.05
    frame = frame_of(mode + 0.3, cov, is_full=True)
    estimate = whitened.estimate(
        jax.random.key(0), target, frame, None, gradient="hessian", num_draws=2
    )
    _, found = dense(frame, estimate)
    np.testing.assert_allclose(found, 0.5 * (np.linalg.inv(cov) - prec), atol=1e-9)


@pytest.mark.parametrize("gradient", ["score", "reparam", "hessian"])
@pytest.mark.parametrize("num_draws", [2, 7])
def test_there_is_no_noise_at_a_gaussian_posterior(quadratic, gradient, num_draws):
    target, prec, mode = quadratic
    frame = frame_of(mode, np.linalg.inv(prec), is_full=True)
    estimate = whitened.estimate(
        jax.random.key(3), target, frame, None, gradient=gradient, num_draws=num_draws
    )
    assert np.abs(estimate.mean[0]).max() < 1e-8
    assert np.abs(frame.dense(estimate.cov)[0]).max() < 1e-8


def test_both_forms_of_the_score_have_the_same_mean():
    problem = problems.regression()
    target, params = problem.model.bind((problem.x, problem.y), jax.random.key(0))
    frame = BlockFrame.from_prec(params, (jnp.asarray(problem.prec) * 1.5,), ((0,),))

    def one(key, form):
        noise = frame.noise(key, 16)
        estimate = whitened.score(target, frame, None, noise, form=form)
        return estimate.mean[0], frame.dense(estimate.cov)[0]

    keys = jax.random.split(jax.random.key(5), DRAWS)
    by_h = jax.jit(jax.vmap(lambda k: one(k, "h")))(keys)
    by_likelihood = jax.jit(jax.vmap(lambda k: one(k, "log-likelihood")))(keys)
    for a, b in zip(by_h, by_likelihood, strict=True):
        difference = np.asarray(a - b)
        error = difference.std(axis=0, ddof=1) / np.sqrt(DRAWS)
        z = difference.mean(axis=0) / np.where(error > 1e-12, error, 1.0)
        assert np.abs(z).max() < 4.5


def test_leave_one_out_sums_to_zero_and_leaves_out_its_own():
    values = jnp.asarray([3.0, -1.0, 7.0, 2.0])
    centred = np.asarray(whitened.leave_one_out(values))
    assert abs(centred.sum()) < 1e-12
    np.testing.assert_allclose(centred[1], -1.0 - (3.0 + 7.0 + 2.0) / 3)


@pytest.mark.parametrize(("num", "size"), [(3, 12), (9, 12)])
def test_low_rank_and_dense_spectra_are_the_same_matrix(num, size):
    rng = np.random.default_rng(2)
    a, b = jnp.asarray(rng.normal(size=(num, size))), jnp.asarray(rng.normal(size=(num, size)))
    params = {"w": jnp.zeros(size)}
    frame = BlockFrame.from_prec(params, (jnp.eye(size),), ((0,),))
    terms = frame.outer((a,), (b,))
    spectrum = frame.spectrum(terms)
    matrix = np.asarray(a.T @ b) / num
    np.testing.assert_allclose(frame.dense(spectrum)[0], 0.5 * (matrix + matrix.T), atol=1e-12)
    changed = terms.shifted(0.3).scaled(-2.0)
    wanted = -(matrix + matrix.T) - 0.6 * np.eye(size)
    np.testing.assert_allclose(frame.dense(changed)[0], wanted, atol=1e-12)
    np.testing.assert_allclose(frame.dense(frame.spectrum(changed))[0], wanted, atol=1e-12)
    # A move by f(B) is the same whichever way the spectrum was found, shift included.
    shifted = spectrum._replace(shift=jnp.asarray(0.3))
    step = (jnp.asarray(rng.normal(size=size)),)
    moved = frame.move(step, shifted, jnp.exp)
    whole = 0.5 * (matrix + matrix.T) + 0.3 * np.eye(size)
    values, vectors = np.linalg.eigh(whole)
    np.testing.assert_allclose(moved.factors[0], (vectors * np.exp(values)) @ vectors.T, atol=1e-10)
    np.testing.assert_allclose(moved.log_det, values.sum(), atol=1e-10)
    np.testing.assert_allclose(moved.mean["w"], step[0], atol=1e-12)
    applied = frame.apply(shifted, lambda v: 1.0 / (2.0 + v) ** 2, step)
    exact = (vectors / (2.0 + values) ** 2) @ vectors.T @ np.asarray(step[0])
    np.testing.assert_allclose(applied[0], exact, atol=1e-10)


@pytest.mark.parametrize("num", [2, 9])
def test_blocks_of_equal_size_are_what_each_is_alone(num):
    """Three blocks, the first and last of one size and so in one batch, against one at a time."""
    rng = np.random.default_rng(4)
    sizes = (6, 4, 6)
    precs = [r @ r.T + np.eye(len(r)) for r in (rng.normal(size=(n, n)) for n in sizes)]
    a, b = ([jnp.asarray(rng.normal(size=(num, n))) for n in sizes] for _ in range(2))
    step = [jnp.asarray(rng.normal(size=n)) for n in sizes]

    def results(chosen):
        mean = {str(i): jnp.full(sizes[i], 0.5 + i) for i in chosen}
        groups = tuple((j,) for j in range(len(chosen)))
        frame = BlockFrame.from_prec(mean, tuple(jnp.asarray(precs[i]) for i in chosen), groups)
        a_, b_, step_ = (tuple(values[i] for i in chosen) for values in (a, b, step))
        terms = frame.outer(a_, b_)
        spectrum = frame.spectrum(terms).scaled(0.1)
        moved = frame.move(step_, spectrum, jnp.exp)
        applied = frame.apply(spectrum, jnp.exp, step_)
        pulled = frame.pull(frame.mean)
        dense = frame.dense(terms), frame.dense(spectrum), frame.quadratic(frame.factors)
        return (list(moved.mean.values()), moved.factors, applied, pulled, *dense), moved.log_det

    together, log_det = results((0, 1, 2))
    alone = [results((i,)) for i in range(3)]
    for kind, values in enumerate(together):
        for i, value in enumerate(values):
            np.testing.assert_allclose(value, alone[i][0][kind][0], atol=1e-11)
    np.testing.assert_allclose(log_det, sum(det for _, det in alone), atol=1e-11)


def test_the_frames_density_is_the_familys():
    rng = np.random.default_rng(3)
    factor = jnp.asarray(rng.normal(size=(3, 3)))
    mean = {"w": jnp.asarray(rng.normal(size=3))}
    frame = BlockFrame(mean, (factor,), jnp.linalg.slogdet(factor)[1], ((0,),))
    noise = frame.noise(jax.random.key(0), 2)
    one = tuple(e[0] for e in noise)
    q = FullGaussian(mean, factor)
    np.testing.assert_allclose(
        whitened.log_density(frame, one), q.log_prob(frame.draw(one)), atol=1e-10
    )


@pytest.mark.parametrize("num_draws", [1, 4])
def test_noise_and_curvature_are_drawn_independently(num_draws, monkeypatch):
    """With a flat density g is the mean noise, and a curvature that is noise itself shows in G."""
    target = bl.Target.from_log_density(lambda w: 0.0 * jnp.sum(w), jnp.zeros(3))
    frame = DiagonalFrame.from_prec(jnp.zeros(3), jnp.ones(3))

    def random_curvature(key, target, params, batch, kind):
        return tree.normal_like(key, params)

    monkeypatch.setattr(whitened.curvature, "diagonal", random_curvature)

    def one(key):
        options = {"gradient": "fisher", "num_draws": num_draws}
        found = whitened.estimate(key, target, frame, None, **options)
        return found.mean, 1.0 - 2.0 * frame.dense(found.cov)

    keys = jax.random.split(jax.random.key(0), DRAWS)
    noise, curvature = (np.ravel(part) for part in jax.jit(jax.vmap(one))(keys))
    assert abs(np.corrcoef(noise, curvature)[0, 1]) < 5.0 / np.sqrt(len(noise))
    # Each draw has a curvature of its own, so that their mean has a smaller variance.
    np.testing.assert_allclose(curvature.var() * num_draws, 1.0, rtol=0.1)
