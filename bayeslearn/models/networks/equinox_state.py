"""An Equinox module with its state, such as running means and variances."""

from __future__ import annotations

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn.models.networks.statistics import initial_layers
from bayeslearn.tree import Array, PyTree


class StatefulEquinox(eqx.Module):
    """An Equinox module and its `eqx.nn.State`, called as `module(x, state)` in inference mode."""

    weights: PyTree
    arrays: PyTree
    state: eqx.nn.State
    static: PyTree = eqx.field(static=True)

    def __init__(self, module: PyTree, state: eqx.nn.State):
        self.weights, rest = eqx.partition(module, eqx.is_inexact_array)
        self.arrays, self.static = eqx.partition(rest, eqx.is_array)
        self.state = state

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        """The weights of the module."""
        return self.weights

    def apply(self, params: PyTree, x: Array, key: Array | None = None) -> Array:
        """Outputs for one example."""
        return eqx.nn.inference_mode(self._module(params))(x, self.state)[0]

    def initial_layers(self) -> list[str]:
        """Layers that no batch has been through."""
        found = initial_layers(self.statistics())
        for name, layer in self._layers().items():
            if layer.mode == "ema" and bool(self.state.get(_flag(layer))):
                found.append(name)
        return found

    def statistics(self) -> dict[str, Array]:
        """Running means and variances, by layer."""
        found: dict[str, Array] = {}
        for name, layer in self._layers().items():
            for kind, value in zip(("mean", "var"), _read(layer, self.state), strict=True):
                found[f"{name}.{kind}"] = value
        return found

    def with_statistics(self, statistics: Mapping[str, Array]) -> StatefulEquinox:
        """The network with other ones."""
        state = _copied(self.state)
        for name, layer in self._layers().items():
            pair = (statistics[f"{name}.mean"], statistics[f"{name}.var"])
            # A count of 0 says that they are not to be debiased.
            flag = jnp.array(0) if layer.mode == "batch" else jnp.array(False)
            state = state.set(_moments(layer), pair).set(_flag(layer), flag)
        return StatefulEquinox(self._module(self.weights), state)

    def trained_statistics(self, params: PyTree, rows: PyTree, key: Array) -> dict[str, Array]:
        """The statistics after one batch in the mode of training."""
        layers, state = self._layers(), _copied(self.state)
        for layer in layers.values():
            if layer.mode == "ema":  # else it would normalise by the running ones
                state = state.set(_flag(layer), jnp.array(True))
        module = eqx.nn.inference_mode(self._module(params))
        module = jax.tree.map(_training, module, is_leaf=_is_batch_norm)

        def one(row: PyTree) -> PyTree:
            return module(row, state)[1]

        for axis in {layer.axis_name for layer in layers.values()}:
            one = jax.vmap(one, out_axes=None, axis_name=axis)
            break  # layers of one network have one axis
        state = one(rows)
        return {
            f"{name}.{kind}": value
            for name, layer in layers.items()
            for kind, value in zip(("mean", "var"), _raw(layer, state), strict=True)
        }

    def _module(self, params: PyTree) -> PyTree:
        return eqx.combine(params, self.arrays, self.static)

    def _layers(self) -> dict[str, eqx.nn.BatchNorm]:
        """The layers of batch normalisation, by their names."""
        pairs = jax.tree_util.tree_leaves_with_path(
            self._module(self.weights), is_leaf=_is_batch_norm
        )
        return {
            jax.tree_util.keystr(path).lstrip(".").replace("[", ".").replace("]", ""): layer
            for path, layer in pairs
            if _is_batch_norm(layer)
        }


def has_state(module: PyTree) -> bool:
    """Whether a module reads a state."""

    def is_index(leaf: object) -> bool:
        return isinstance(leaf, eqx.nn.StateIndex)

    return any(map(is_index, jax.tree.leaves(module, is_leaf=is_index)))


def _is_batch_norm(leaf: object) -> bool:
    return isinstance(leaf, eqx.nn.BatchNorm)


def _training(leaf: PyTree) -> PyTree:
    """A layer of batch normalisation in the mode of training."""
    if not _is_batch_norm(leaf):
        return leaf
    return eqx.tree_at(lambda layer: layer.inference, leaf, replace=False)


def _raw(layer: eqx.nn.BatchNorm, state: eqx.nn.State) -> tuple[Array, Array]:
    """What a state holds of a layer."""
    return state.get(_moments(layer))


def _moments(layer: eqx.nn.BatchNorm) -> PyTree:
    """Where its mean and variance are."""
    return layer.batch_state_index if layer.mode == "batch" else layer.ema_state_index


def _flag(layer: eqx.nn.BatchNorm) -> PyTree:
    """Where its number of batches is, or whether there was none."""
    return layer.batch_counter if layer.mode == "batch" else layer.ema_first_time_index


def _read(layer: eqx.nn.BatchNorm, state: eqx.nn.State) -> tuple[Array, Array]:
    """Its mean and variance, as inference uses them."""
    mean, var = _raw(layer, state)
    if layer.mode != "batch":
        return mean, var
    count = state.get(_flag(layer))
    scale = jnp.where(count == 0, 1.0, 1.0 - layer.momentum**count)
    return mean / scale, var / scale


def _copied(state: eqx.nn.State) -> eqx.nn.State:
    """Another object: `set` makes the old one unusable."""
    return jax.tree.map(lambda leaf: leaf, state)
