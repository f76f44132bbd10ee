"""Double precision inside, whatever the user's configuration: the only file that switches it.

`fit`, `predict` and the public methods of posteriors and families run under `double_precision`,
which therefore also refuses a forked process in which JAX would hang.
A network is initialised under `user_precision` and evaluated under `network_precision`, in its
own dtype. The user's configuration is restored on exit.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from bayeslearn import forking

P = ParamSpec("P")
R = TypeVar("R")

_user_x64: contextvars.ContextVar[bool | None] = contextvars.ContextVar("user_x64", default=None)


@contextlib.contextmanager
def inside_double_precision() -> Iterator[None]:
    """Enable 64-bit types in this block (and its thread)."""
    forking.enter()
    outermost = _user_x64.get() is None
    token = _user_x64.set(bool(jax.config.read("jax_enable_x64"))) if outermost else None
    try:
        with jax.enable_x64(True):
            yield
    finally:
        if token is not None:
            _user_x64.reset(token)


def double_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` with 64-bit types; an outermost call returns NumPy arrays for float64."""

    @functools.wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        is_outermost = _user_x64.get() is None
        with inside_double_precision():
            result = function(*args, **kwargs)
            return to_host(result) if is_outermost else result

    return inside


def to_host(values: R) -> R:
    """float64 arrays as NumPy: where 64-bit types are off, JAX would truncate them."""

    def convert(leaf: object) -> object:
        if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
            return leaf
        return np.asarray(leaf) if leaf.dtype == jnp.float64 else leaf

    return jax.tree.map(convert, values)


def user_precision() -> AbstractContextManager[object]:
    """The configuration the user had when they called us."""
    return jax.enable_x64(bool(_user_x64.get()))


def network_precision(dtype: DTypeLike) -> AbstractContextManager[object]:
    """The context in which a network of this dtype is evaluated."""
    return jax.enable_x64(jnp.dtype(dtype) == jnp.float64)
