"""The SPD manifold: identities of the geometry, each checked against a second computation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from bayeslearn.geometry import spd

K = 4


@pytest.fixture(autouse=True)
def _strict_double():
    with (
        jax.enable_x64(True),
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
    ):
        yield


def random_spd(seed, shape=(K,), condition=30.0):
    rng = np.random.default_rng(seed)
    k = shape[-1]
    basis = np.linalg.qr(rng.normal(size=(*shape, k)))[0]
    eigenvalues = np.exp(rng.uniform(0.0, np.log(condition), size=(*shape[:-1], 1, k)))
    matrix = (basis * eigenvalues) @ np.swapaxes(basis, -1, -2)
    return jnp.asarray(0.5 * (matrix + np.swapaxes(matrix, -1, -2)))


def random_tangent(seed, shape=(K,), scale=1.0):
    matrix = scale * np.random.default_rng(100 + seed).normal(size=(*shape, shape[-1]))
    return jnp.asarray(matrix + np.swapaxes(matrix, -1, -2))


def close(actual, expected, tolerance=1e-10):
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def geodesic(z, velocity):
    """The geodesic as a function of time to (point, speed), by general matrix functions."""
    root = np.real(scipy.linalg.sqrtm(np.asarray(z)))
    inverse_root = np.linalg.inv(root)
    generator = inverse_root @ np.asarray(velocity) @ inverse_root

    def at(t):
        middle = scipy.linalg.expm(t * generator)
        return root @ middle @ root, root @ generator @ middle @ root

    return at


def explicit_transport(z, y, xi):
    ratio_root = np.real(scipy.linalg.sqrtm(np.asarray(y) @ np.linalg.inv(z)))
    return ratio_root @ np.asarray(xi) @ ratio_root.T


# Metric and gradient


def test_inner_is_the_trace_form():
    z, a, b = random_spd(0), random_tangent(1), random_tangent(2)
    inverse = np.linalg.inv(z)
    close(spd.inner(z, a, b), np.trace(inverse @ a @ inverse @ b))
    close(spd.norm(z, a), np.sqrt(np.trace(inverse @ a @ inverse @ a)))


def test_gradient_represents_the_differential():
    z, xi, weights = random_spd(0), random_tangent(1), random_tangent(3)
    mixing = jnp.asarray(np.random.default_rng(8).normal(size=(K, K)))

    def loss(x):  # its autodiff gradient is not symmetric
        return jnp.trace(weights @ x @ mixing @ x) + jnp.linalg.slogdet(x)[1]

    euclidean = jax.jit(jax.grad(loss))(z)
    assert jnp.max(jnp.abs(euclidean - euclidean.T)) > 1e-2
    slope = jnp.sum(euclidean * xi)
    gradient = spd.riemannian_gradient(z, euclidean)
    close(spd.inner(z, gradient, xi), slope)
    close(gradient, gradient.T, 1e-13)


# Retraction


def test_two_printed_forms_of_the_retraction():
    z, xi = random_spd(0), random_tangent(1)
    inverse = np.linalg.inv(z)
    got = spd.retract(z, xi)
    close(got, z + xi + 0.5 * xi @ inverse @ xi, 1e-12)
    close(got, 0.5 * z + 0.5 * (z + xi) @ inverse @ (z + xi), 1e-12)


def test_retraction_is_second_order():
    z, xi = random_spd(0), random_tangent(1, scale=0.3)
    scales = [2.0**-i for i in range(3, 8)]
    errors = [jnp.linalg.norm(spd.retract(z, s * xi) - spd.exp_map(z, s * xi)) for s in scales]
    ratios = np.array(errors[:-1]) / np.array(errors[1:])
    assert abs(ratios[-1] - 8.0) < 0.2
    assert np.all(np.diff(np.abs(ratios - 8.0)) < 0)


@pytest.mark.parametrize("scale", [0.1, 10.0, 1e4])
def test_results_are_symmetric_and_positive(scale):
    z, xi = random_spd(0, condition=1e4), random_tangent(1, scale=scale)
    steps = {"retract": spd.retract(z, xi), "exp_map": spd.exp_map(z, 0.01 * xi / scale)}
    for name, new in steps.items():
        close(new, new.T, 1e-13 * float(jnp.max(jnp.abs(new))))
        assert np.linalg.eigvalsh(new)[0] > 0, name
    # R >= Z/2 in the order of matrices
    gap = np.linalg.eigvalsh(steps["retract"] - 0.5 * z)
    assert gap[0] > -1e-12 * gap[-1]


def test_retraction_is_not_monotone():
    z = random_spd(0)
    close(spd.retract(z, -3.0 * z), 2.5 * z)
    close(spd.retract(z, -1.0 * z), 0.5 * z)


# Exponential and logarithm, distance


def test_exp_map_follows_the_geodesic():
    z, xi = random_spd(0), random_tangent(1)
    close(spd.exp_map(z, xi), geodesic(z, xi)(1.0)[0])


def test_exp_and_log_are_inverse():
    z, y, xi = random_spd(0), random_spd(5), random_tangent(1)
    close(spd.exp_map(z, spd.log_map(z, y)), y)
    close(spd.log_map(z, spd.exp_map(z, xi)), xi)


def test_distance():
    z, y = random_spd(0), random_spd(5)
    change = jnp.asarray(np.random.default_rng(9).normal(size=(K, K)))
    here = spd.distance(z, y)
    close(spd.distance(change @ z @ change.T, change @ y @ change.T), here)
    close(spd.distance(*[jnp.asarray(np.linalg.inv(a)) for a in (z, y)]), here)
    close(spd.distance(y, z), here)
    close(spd.norm(z, spd.log_map(z, y)), here)
    close(spd.squared_distance(z, y), here**2)
    generalised = scipy.linalg.eigh(np.asarray(y), np.asarray(z), eigvals_only=True)
    close(here, np.sqrt(np.sum(np.log(generalised) ** 2)))


# Transport


def test_transport_is_an_isometry_onto_the_destination():
    z, y, a, b = random_spd(0), random_spd(5), random_tangent(1), random_tangent(2)
    moved_a, moved_b = spd.transport(z, y, a), spd.transport(z, y, b)
    close(spd.inner(y, moved_a, moved_b), spd.inner(z, a, b))
    close(spd.transport(z, y, z), y)  # E Z E^T = Y
    close(moved_a, explicit_transport(z, y, a))
    close(spd.transport(y, z, moved_a), a)


def test_transport_solves_the_parallel_transport_equation():
    z, y, xi = random_spd(0), random_spd(5), random_tangent(1)
    curve = geodesic(z, spd.log_map(z, y))

    def slope(t, v):
        point, speed = curve(t)
        left = speed @ np.linalg.inv(point) @ v
        return 0.5 * (left + left.T)

    num, v = 40, np.asarray(xi)
    h = 1.0 / num
    for i in range(num):
        t = i * h
        k1 = slope(t, v)
        k2 = slope(t + h / 2, v + h / 2 * k1)
        k3 = slope(t + h / 2, v + h / 2 * k2)
        k4 = slope(t + h, v + h * k3)
        v = v + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    close(spd.transport(z, y, xi), v, 1e-8)


def test_tangent_form_of_the_transport():
    z, eta, xi = random_spd(0), random_tangent(4), random_tangent(1)
    got = spd.transport_along(z, eta, xi)
    close(got, spd.transport(z, spd.exp_map(z, eta), xi))
    root = np.real(scipy.linalg.sqrtm(np.asarray(z)))
    inverse_root = np.linalg.inv(root)
    q = root @ scipy.linalg.expm(0.5 * inverse_root @ eta @ inverse_root) @ inverse_root
    close(got, q @ xi @ q.T)


def test_survey_tangent_form_with_a_destination_is_no_isometry():
    z, y, xi = random_spd(0), random_spd(5), random_tangent(1)
    as_printed = spd.transport_along(z, y, xi)
    assert spd.norm(y, as_printed) > 1.5 * spd.norm(z, xi)


# Trust region


def test_clip_acts_only_beyond_the_radius():
    z, xi = random_spd(0), random_tangent(1)
    whitened = scipy.linalg.eigh(np.asarray(xi), np.asarray(z), eigvals_only=True)
    largest = np.abs(whitened).max()
    same, is_clipped = spd.clip_tangent(z, xi, 1.01 * largest)
    assert not is_clipped
    assert jnp.array_equal(same, xi)
    same, is_clipped = spd.clip_tangent(z, xi, None)
    assert not is_clipped
    assert jnp.array_equal(same, xi)
    radius = 0.5 * largest
    clipped, is_clipped = spd.clip_tangent(z, xi, radius)
    assert is_clipped
    after = scipy.linalg.eigh(np.asarray(clipped), np.asarray(z), eigvals_only=True)
    close(after, np.clip(whitened, -radius, radius))
    # The generalised eigenvectors stay: held commutes with xi relative to z.
    close(clipped @ np.linalg.solve(z, xi), xi @ np.linalg.solve(z, clipped))


# Moving frame


@pytest.mark.parametrize("weight", [0.0, 0.4, 0.9])
def test_moving_frame_equals_transported_momentum(weight):
    rng = np.random.default_rng(3)
    z = np.asarray(random_spd(0))
    frame = jnp.asarray(np.linalg.cholesky(z) @ np.linalg.qr(rng.normal(size=(K, K)))[0])
    inverse_frame = jnp.asarray(np.linalg.inv(frame).T)
    momentum, moved, step = jnp.zeros((K, K)), np.zeros((K, K)), 0.3
    jitted = jax.jit(spd.frame_step)
    for _ in range(40):
        noise = rng.normal(size=(K, K))
        gradient = np.eye(K) - z + 0.3 * (noise + noise.T)  # pulls Z towards the identity
        moved = weight * moved + (1 - weight) * gradient
        step_xi = step * moved
        new = z + step_xi + 0.5 * step_xi @ np.linalg.solve(z, step_xi)
        new = 0.5 * (new + new.T)
        z, moved = new, explicit_transport(z, new, moved)

        whitened = spd.symmetrize(inverse_frame.T @ gradient @ inverse_frame)
        momentum = weight * momentum + (1 - weight) * whitened
        frame, inverse_frame, is_clipped = jitted(frame, inverse_frame, momentum, step)
        assert not is_clipped
    close(frame @ frame.T, z)
    close(frame @ momentum @ frame.T, moved)
    close(frame.T @ inverse_frame, np.eye(K))


def test_frame_step_clip():
    z, momentum = random_spd(0), random_tangent(1)
    frame = jnp.linalg.cholesky(z)
    inverse_frame = jnp.asarray(np.linalg.inv(frame).T)
    step = 0.1
    largest = float(jnp.max(jnp.abs(jnp.linalg.eigvalsh(step * momentum))))
    bare = spd.frame_step(frame, inverse_frame, momentum, step, None)
    loose = spd.frame_step(frame, inverse_frame, momentum, step, 1.01 * largest)
    for left, right in zip(bare, loose, strict=True):
        assert jnp.array_equal(left, right)
    assert not bare[2]
    radius = 0.5 * largest
    new, new_inverse, is_clipped = spd.frame_step(frame, inverse_frame, momentum, step, radius)
    assert is_clipped
    clipped, _ = spd.clip_tangent(z, step * frame @ momentum @ frame.T, radius)
    close(new @ new.T, spd.retract(z, clipped))
    close(new.T @ new_inverse, np.eye(K))


# Diagonal twins


def diagonal_cases():
    rng = np.random.default_rng(7)
    z, y = np.exp(rng.normal(size=(2, K)))
    xi, eta = rng.normal(size=(2, K))
    return {
        "inner": (z, xi, eta),
        "norm": (z, xi),
        "riemannian_gradient": (z, xi),
        "retract": (z, xi),
        "exp_map": (z, xi),
        "log_map": (z, y),
        "transport": (z, y, xi),
        "transport_along": (z, eta, xi),
        "squared_distance": (z, y),
        "distance": (z, y),
    }


@pytest.mark.parametrize("name", diagonal_cases())
def test_diagonal_twin_equals_full(name):
    arguments = [jnp.asarray(a) for a in diagonal_cases()[name]]
    full = getattr(spd, name)(*[jnp.diag(a) for a in arguments])
    twin = getattr(spd, f"{name}_diagonal")
    got = twin(*arguments)
    close(jnp.diag(got) if got.ndim else got, full)
    shaped = twin(*[a.reshape(2, 2) for a in arguments])
    close(shaped.reshape(got.shape), got, 1e-14)


def test_diagonal_clip_and_frame():
    z, xi = (jnp.asarray(a) for a in diagonal_cases()["norm"])
    radius = 0.5 * float(jnp.max(jnp.abs(xi / z)))
    clipped, is_clipped = spd.clip_tangent_diagonal(z, xi, radius)
    full, _ = spd.clip_tangent(jnp.diag(z), jnp.diag(xi), radius)
    assert is_clipped
    close(jnp.diag(clipped), full)
    for slack in (2.01 * radius, None):
        same, is_clipped = spd.clip_tangent_diagonal(z, xi, slack)
        assert not is_clipped
        assert jnp.array_equal(same, xi)

    frame = jnp.sqrt(z)
    for bound, expected in ((None, xi), (2.01 * radius, xi), (radius, clipped)):
        new, inverse, is_clipped = spd.frame_step_diagonal(
            frame, 1 / frame, 10 * xi / z, 0.1, bound
        )
        assert is_clipped == (bound == radius)
        close(new**2, spd.retract_diagonal(z, expected))
        close(new * inverse, 1.0)
    bare = spd.frame_step_diagonal(frame, 1 / frame, xi / z, 1.0, None)
    loose = spd.frame_step_diagonal(frame, 1 / frame, xi / z, 1.0, 2.01 * radius)
    assert jnp.array_equal(bare[0], loose[0])


# Transformations of JAX

SIGNATURES = {
    "symmetrize": "t",
    "inner": "ptt",
    "norm": "pt",
    "riemannian_gradient": "pt",
    "retract": "pt",
    "exp_map": "pt",
    "log_map": "pp",
    "transport": "ppt",
    "transport_along": "ptt",
    "squared_distance": "pp",
    "distance": "pp",
}


def arguments_of(signature):
    make = {"p": random_spd, "t": random_tangent}
    return [make[kind](i) for i, kind in enumerate(signature)]


def test_batch_equals_loop_and_dtype_is_kept():
    def everything(points, tangents):
        pick = {"p": points, "t": tangents}
        return {
            name: getattr(spd, name)(*[pick[kind][i] for i, kind in enumerate(signature)])
            for name, signature in SIGNATURES.items()
        }

    points = [random_spd(i, (3, 3)) for i in range(3)]
    tangents = [random_tangent(i, (3, 3)) for i in range(3)]
    jitted = jax.jit(everything)
    batched, mapped = jitted(points, tangents), jax.jit(jax.vmap(everything))(points, tangents)
    for i in range(3):
        one = jitted(*jax.tree.map(lambda a, i=i: a[i], (points, tangents)))
        for name in SIGNATURES:
            close(batched[name][i], one[name], 1e-12)
            close(mapped[name][i], one[name], 1e-12)
    half = jax.tree.map(lambda a: a.astype(jnp.float32), (points, tangents))
    shapes = jax.eval_shape(everything, *half)
    assert {name: out.dtype for name, out in shapes.items()} == dict.fromkeys(shapes, jnp.float32)


def test_steps_batch_and_keep_dtype():
    z, xi = random_spd(0, (3, 3)), random_tangent(1, (3, 3))
    largest = [
        np.abs(scipy.linalg.eigh(np.asarray(xi[i]), np.asarray(z[i]), eigvals_only=True)).max()
        for i in range(3)
    ]
    radius = float(np.median(largest)) * 1.0001
    frame = np.linalg.cholesky(z)
    arguments = (z, xi, jnp.asarray(frame), jnp.asarray(np.linalg.inv(frame).swapaxes(-1, -2)))

    def steps(z, xi, frame, inverse):
        size = np.float64(radius)
        return *spd.clip_tangent(z, xi, size), *spd.frame_step(frame, inverse, xi, size, size)

    batched = jax.jit(steps)(*arguments)
    assert batched[1].shape == batched[4].shape == (3,)
    assert int(batched[1].sum()) == 1  # only the block beyond the radius
    one_by_one = jax.jit(steps)
    for i in range(3):
        for block, alone in zip(batched, one_by_one(*[a[i] for a in arguments]), strict=True):
            close(block[i], alone, 1e-12)
    shapes = jax.eval_shape(steps, *[a.astype(jnp.float32) for a in arguments])
    assert [out.dtype.name for out in shapes] == ["float32", "bool", "float32", "float32", "bool"]


@functools.cache
def derivatives(name):
    """Forward derivative, five-point difference, and the reverse one contracted with weights."""
    function, h = getattr(spd, name), 1e-3

    @jax.jit
    def compute(arguments, directions, weights):
        def at(t):
            return function(*[a + t * d for a, d in zip(arguments, directions, strict=True)])

        values = jax.vmap(at)(h * jnp.asarray([1.0, -1.0, 2.0, -2.0]))
        numeric = (8 * (values[0] - values[1]) - (values[2] - values[3])) / (12 * h)
        _, forward = jax.jvp(function, arguments, directions)
        reverse = jax.grad(lambda a: jnp.sum(weights * function(*a)))(arguments)
        contracted = sum(jnp.sum(g * d) for g, d in zip(reverse, directions, strict=True))
        return forward, numeric, contracted

    return compute


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("name", ["retract", "exp_map", "log_map", "transport", "transport_along"])
def test_derivatives_survive_repeated_eigenvalues(name, repeated):
    signature = SIGNATURES[name]
    arguments = arguments_of(signature)
    if repeated:  # the whitened second argument has all its eigenvalues equal
        arguments[1] = arguments[0] * (1.0 if signature[1] == "p" else 0.0)
    directions = tuple(random_tangent(20 + i, scale=0.1) for i in range(len(signature)))
    weights = random_tangent(40)
    forward, numeric, contracted = derivatives(name)(tuple(arguments), directions, weights)
    close(forward, numeric, 1e-7)
    close(contracted, jnp.sum(weights * forward))


def test_squared_distance_gradient_is_minus_twice_the_logarithm():
    z, y = random_spd(0), random_spd(5)
    euclidean = jax.jit(jax.grad(spd.squared_distance))
    close(spd.riemannian_gradient(z, euclidean(z, y)), -2 * spd.log_map(z, y))
    at_itself = euclidean(z, z)
    close(at_itself, np.zeros((K, K)))
