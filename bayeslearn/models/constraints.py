r"""Constrained parameters of a log-density, sampled as real numbers.

With x = f(z) the density of z is log p(f(z)) + log |df/dz|:

    positive         x = exp(z)
    interval (a, b)  x = a + (b - a) / (1 + exp(-z))
    ordered          x_1 = z_1,  x_k = x_{k-1} + exp(z_k)
    simplex          x_k = (1 - x_1 - ... - x_{k-1}) / (1 + (K - k) exp(-z_k)),  k < K

`ordered` and `simplex` are vectors along the last axis; a simplex of K numbers has K - 1 z, and
z = 0 is x = 1 / K (stick breaking, as in Stan).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.errors import Shown, refuse
from bayeslearn.tree import Array, PyTree

Constraint = str | tuple[str, float, float]
Kind = tuple[str | float, ...]  # of a leaf
NAMES = ("positive", "ordered", "simplex")
REAL: Kind = ("real",)


def kinds_of(constraints: Mapping[str, Constraint], params: PyTree) -> tuple[Kind, ...]:
    """The constraint of each leaf: that of the first name pattern that it matches."""
    if not isinstance(constraints, Mapping):
        refuse("constraints", constraints, 'map names of parameters, as {"tau": "positive"}')
    kinds = {pattern: _checked(pattern, given) for pattern, given in constraints.items()}
    names = tree.leaf_names(params)
    for pattern in kinds:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            refuse("constraints", pattern, f"name parameters, which are {', '.join(names)}")
    found = [next((k for p, k in kinds.items() if fnmatch.fnmatchcase(n, p)), REAL) for n in names]
    for name, kind, leaf in zip(names, found, jax.tree.leaves(params), strict=True):
        _check_value(name, kind, np.asarray(leaf))
    return tuple(found)


def _checked(name: str, given: Constraint) -> Kind:
    if isinstance(given, str) and given in NAMES:
        return (given,)
    if isinstance(given, tuple) and len(given) == 3 and given[0] == "interval":
        low, high = float(given[1]), float(given[2])
        if np.isfinite(low) and np.isfinite(high) and low < high:
            return ("interval", low, high)
    must = 'be "positive", "ordered", "simplex" or ("interval", low, high)'
    refuse(f"constraints[{name!r}]", given, must)


def _check_value(name: str, kind: Kind, value: np.ndarray) -> None:
    """Refuse initial values that do not meet their constraint."""
    is_vector = kind[0] in ("ordered", "simplex")
    if is_vector and (value.ndim == 0 or value.shape[-1] < 2):
        refuse(f"params[{name!r}]", Shown(f"shape {value.shape}"), f"be a vector for {kind[0]}")
    is_met = {
        "real": lambda: True,
        "positive": lambda: np.all(value > 0),
        "interval": lambda: np.all((value > _ends(kind)[0]) & (value < _ends(kind)[1])),
        "ordered": lambda: np.all(np.diff(value, axis=-1) > 0),
        "simplex": lambda: np.all(value > 0) and np.allclose(value.sum(axis=-1), 1.0),
    }[str(kind[0])]()
    if not is_met:
        words = " ".join(map(str, kind))
        refuse(f"params[{name!r}]", value, f"meet its constraint, {words}")


def constrain(kinds: tuple[Kind, ...], z: PyTree) -> PyTree:
    """x of each leaf; leading axes are draws."""
    return _by_leaf(_forward, kinds, z)


def unconstrain(kinds: tuple[Kind, ...], x: PyTree) -> PyTree:
    """The inverse of `constrain`."""
    return _by_leaf(_inverse, kinds, x)


def log_jacobian(kinds: tuple[Kind, ...], z: PyTree) -> Array:
    """log |df/dz|, summed over all parameters."""
    return tree.total(_by_leaf(_log_slope, kinds, z))


def unconstrained(
    kinds: tuple[Kind, ...],
    log_density: Callable[[PyTree], Array],
    init: Callable[[Array], PyTree] | None,
) -> tuple[Callable[[PyTree], Array], Callable[[Array], PyTree] | None]:
    """The log-density of z, and what draws a z to start from."""

    def of_real(z: PyTree) -> Array:
        return log_density(constrain(kinds, z)) + log_jacobian(kinds, z)

    if init is None:
        return of_real, None
    return of_real, lambda key: unconstrain(kinds, tree.double(init(key)))


def _by_leaf(
    function: Callable[[Kind, Array], Array], kinds: tuple[Kind, ...], params: PyTree
) -> PyTree:
    leaves, treedef = jax.tree.flatten(params)
    return jax.tree.unflatten(treedef, list(map(function, kinds, leaves)))


def _sticks(z: Array) -> tuple[Array, Array]:
    """Log-fraction of the rest that each entry of a simplex takes, and that it leaves."""
    offset = jnp.log(jnp.arange(z.shape[-1], 0, -1, dtype=z.dtype))
    return jax.nn.log_sigmoid(z - offset), jax.nn.log_sigmoid(offset - z)


def _log_rest(left: Array) -> Array:
    """Log of what is left before each entry."""
    return jnp.cumsum(left, axis=-1) - left


def _ends(kind: Kind) -> tuple[float, float]:
    return float(kind[1]), float(kind[2])


def _forward(kind: Kind, z: Array) -> Array:
    name = kind[0]
    if name == "positive":
        return jnp.exp(z)
    if name == "interval":
        low, high = _ends(kind)
        return low + (high - low) * jax.nn.sigmoid(z)
    if name == "ordered":
        steps = jnp.concatenate([z[..., :1], jnp.exp(z[..., 1:])], axis=-1)
        return jnp.cumsum(steps, axis=-1)
    if name == "simplex":
        taken, left = _sticks(z)
        entries = jnp.exp(_log_rest(left) + taken)
        return jnp.concatenate([entries, jnp.exp(jnp.sum(left, axis=-1, keepdims=True))], axis=-1)
    return z


def _inverse(kind: Kind, x: Array) -> Array:
    name = kind[0]
    if name == "positive":
        return jnp.log(x)
    if name == "interval":
        low, high = _ends(kind)
        return jnp.log(x - low) - jnp.log(high - x)
    if name == "ordered":
        return jnp.concatenate([x[..., :1], jnp.log(jnp.diff(x, axis=-1))], axis=-1)
    if name == "simplex":
        rest = jnp.cumsum(x[..., ::-1], axis=-1)[..., ::-1]
        size = x.shape[-1] - 1
        offset = jnp.log(jnp.arange(size, 0, -1, dtype=x.dtype))
        return jnp.log(x[..., :-1]) - jnp.log(rest[..., 1:]) + offset
    return x


def _log_slope(kind: Kind, z: Array) -> Array:
    name = kind[0]
    if name == "positive":
        return z
    if name == "interval":
        low, high = _ends(kind)
        return jnp.log(high - low) + jax.nn.log_sigmoid(z) + jax.nn.log_sigmoid(-z)
    if name == "ordered":
        return z[..., 1:]
    if name == "simplex":
        taken, left = _sticks(z)
        return _log_rest(left) + taken + left
    return jnp.zeros_like(z)
