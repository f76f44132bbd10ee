"""Convolutions in the order of axes that XLA's CPU compiler is fast with: the same values."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bayeslearn.channels_last import NAME, channels_last
from bayeslearn.jaxprs import equations, has_primitive, values_per_row

KEYS = jax.random.split(jax.random.key(0), 3)
IMAGES = jax.random.normal(KEYS[0], (5, 4, 9, 8))
SERIES = jax.random.normal(KEYS[0], (5, 4, 11))
CASES = {
    "same": (IMAGES, (6, 4, 3, 3), {"padding": "SAME"}),
    "strides": (IMAGES, (6, 4, 3, 2), {"window_strides": (2, 3)}),
    "groups": (IMAGES, (6, 2, 3, 3), {"feature_group_count": 2}),
    "depthwise": (IMAGES, (4, 1, 3, 3), {"feature_group_count": 4}),
    "dilated": (IMAGES, (6, 4, 2, 2), {"rhs_dilation": (2, 1)}),
    "transposed": (IMAGES, (6, 4, 3, 3), {"lhs_dilation": (2, 2), "padding": ((1, 2), (2, 1))}),
    "one axis": (SERIES, (6, 4, 3), {"padding": "SAME"}),
}


def convolution(options, x, kernel):
    given = {"window_strides": (1,) * (x.ndim - 2), "padding": "VALID"} | options
    return lax.conv_general_dilated(x, kernel, **given)


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_the_same(case):
    x, shape, options = CASES[case]
    kernel = jax.random.normal(KEYS[1], shape)

    def loss(kernel, x):
        return jnp.sum(jnp.sin(convolution(options, x, kernel)))

    both = jax.value_and_grad(loss, argnums=(0, 1))
    expected, found = jax.jit(both)(kernel, x), jax.jit(channels_last(both))(kernel, x)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


def looped(kernels, x, *, power=1):
    """Gradients in a scan, of several kernels together, in a branch, evaluated again."""

    def one(total, kernel):
        value = jax.checkpoint(partial(convolution, {"padding": "SAME"}))(x, kernel)
        return total + jax.nn.gelu(value).sum() ** power, value.mean()

    def loss(kernels):
        total, _ = lax.scan(one, 0.0, kernels)
        return total + lax.cond(
            total > 0, lambda: jax.vmap(partial(one, 0.0))(kernels)[0].sum(), lambda: 0.0
        )

    return jax.grad(loss)(kernels)


def test_loops_branches_calls_and_static_arguments():
    kernels = 0.1 * jax.random.normal(KEYS[2], (3, 4, 4, 3, 3))
    moved = jax.jit(channels_last(looped), static_argnames="power")
    plain = jax.jit(looped, static_argnames="power")
    for power in (1, 2):
        expected, found = plain(kernels, IMAGES, power=power), moved(kernels, IMAGES, power=power)
        np.testing.assert_allclose(expected, found, rtol=1e-3, atol=1e-2)
    found = [
        eqn
        for eqn in equations(jax.make_jaxpr(channels_last(looped))(kernels, IMAGES).jaxpr)
        if eqn.primitive.name == NAME
    ]
    assert len(found) >= 4
    for eqn in found:
        orders = eqn.params["dimension_numbers"]
        assert orders.lhs_spec == orders.out_spec == (0, 3, 1, 2)
        assert orders.rhs_spec == (3, 2, 0, 1)


def test_functions_without_convolutions_are_left_as_they_are():
    def function(x, *, scale):
        return {"sum": (scale * x).sum(), "x": x}

    found = jax.jit(channels_last(function), static_argnames="scale")(IMAGES, scale=2.0)
    assert found["sum"] == 2.0 * IMAGES.sum()
    assert not has_primitive(jax.make_jaxpr(partial(function, scale=1.0))(IMAGES).jaxpr, NAME)


def test_values_of_a_row_do_not_count_weights():
    weights = jnp.ones((8, 10_000))
    assert values_per_row(lambda x: (x @ weights[:, :50]).sum(), jnp.ones((7, 8))) == 50

    def images(x):
        return convolution({"padding": "SAME"}, x, jnp.ones((32, 4, 3, 3)))

    assert values_per_row(images, IMAGES) == 32 * 9 * 8
