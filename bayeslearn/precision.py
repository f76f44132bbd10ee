"""Double precision inside, whatever the user's configuration: the only file that switches it.

`fit`, `predict` and the public methods of posteriors and families run under `double_precision`;
a network is initialised under `user_precision` and evaluated under `network_precision`, in its
own dtype. The user's configuration is restored on the way out.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

P = ParamSpec("P")
R = TypeVar("R")

_user_x64: contextvars.ContextVar[bool | None] = contextvars.ContextVar("user_x64", default=None)


@contextlib.contextmanager
def inside_double_precision() -> Iterator[None]:
    """64-bit types are allowed in this block (and its thread)."""
    outermost = _user_x64.get() is None
    token = _user_x64.set(bool(jax.config.read("jax_enable_x64"))) if outermost else None
    try:
        with jax.enable_x64(True):
            yield
    finally:
        if token is not None:
            _user_x64.reset(token)


def double_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` with 64-bit types allowed; called from outside, give NumPy for float64."""

    @functools.wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        is_outermost = _user_x64.get() is None
        with inside_double_precision():
            result = function(*args, **kwargs)
            return to_host(result) if is_outermost else result

    return inside


def to_host(values: R) -> R:
    """float64 arrays as NumPy: in the user's 32-bit world JAX would cut them with a warning."""

    def convert(leaf: Any) -> Any:
        is_concrete = isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
        return np.asarray(leaf) if is_concrete and leaf.dtype == jnp.float64 else leaf

    return jax.tree.map(convert, values)


def user_precision() -> Any:
    """The configuration the user had when they called us."""
    return jax.enable_x64(bool(_user_x64.get()))


def network_precision(dtype: Any) -> Any:
    """The context in which a network of this dtype is evaluated."""
    return jax.enable_x64(jnp.dtype(dtype) == jnp.float64)
