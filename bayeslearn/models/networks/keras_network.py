"""Networks of Keras 3, on JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import equinox as eqx

from bayeslearn.errors import Shown, refuse
from bayeslearn.models.networks.adapter_parts import Static, as_batch
from bayeslearn.tree import Array, PyTree

if TYPE_CHECKING:
    import keras


class KerasNetwork(eqx.Module):
    """A Keras 3 model or layer on the JAX backend, built.

    Its trainable variables are the weights, named by their paths without the model's own name;
    layers with `trainable = False` are frozen.
    """

    weights: dict[str, Array]
    frozen: list[Array]
    names: tuple[str, ...] = eqx.field(static=True)
    frozen_names: tuple[str, ...] = eqx.field(static=True)
    model: Static = eqx.field(static=True)

    def __init__(self, model: keras.Model | keras.layers.Layer):
        import keras

        if keras.backend.backend() != "jax":
            refuse(
                "network",
                Shown(f"one on the {keras.backend.backend()} backend"),
                "be a Keras model on the JAX backend",
                "Set KERAS_BACKEND=jax in the environment before Keras is imported.",
            )
        if not model.built:
            refuse(
                "network",
                Shown(f"the unbuilt model {model.name!r}"),
                "be a Keras model that has its weights",
                "Call it once, model(x[:1]), or start it with keras.Input.",
            )
        variables = model.trainable_variables
        paths, frozen_paths = (
            [v.path.removeprefix(f"{model.name}/").replace("/", ".") for v in some]
            for some in (variables, model.non_trainable_variables)
        )
        twice = sorted({path for path in paths if paths.count(path) > 1})
        if twice:
            refuse(
                "network",
                Shown(f"{', '.join(twice)} more than once"),
                "have one name for each weight",
                "Give its layers different names.",
            )
        self.names = tuple(paths)
        self.weights = {name: v.value for name, v in zip(paths, variables, strict=True)}
        self.frozen = [v.value for v in model.non_trainable_variables]
        self.frozen_names = tuple(frozen_paths)
        self.model = Static(model)

    def init(self, key: Array, x_example: PyTree, num_outputs: int) -> PyTree:
        """The weights of the module."""
        return self.weights

    def apply(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """Outputs for one example."""
        weights = [params[name] for name in self.names]
        for ours, theirs in zip(weights, self.model.value.trainable_variables, strict=True):
            if ours.dtype != theirs.dtype:
                refuse(
                    "dtype",
                    str(ours.dtype),
                    f"be that of the Keras model ({theirs.dtype}), which casts to its own",
                    "Set keras.config.set_floatx before making the model.",
                )
        outputs, _ = self.model.value.stateless_call(
            weights, self.frozen, as_batch(x), training=False
        )
        return outputs[0]

    def statistics(self) -> dict[str, Array]:
        """Running means and variances, by layer."""
        return {self.frozen_names[i]: self.frozen[i] for i in self._moving()}

    def with_statistics(self, statistics: Mapping[str, Array]) -> KerasNetwork:
        """The network with other ones."""
        pairs = zip(self.frozen_names, self.frozen, strict=True)
        moved = [statistics.get(name, old) for name, old in pairs]
        return eqx.tree_at(lambda n: n.frozen, self, moved)

    def trained_statistics(self, params: PyTree, rows: PyTree, key: Array) -> dict[str, Array]:
        """The statistics after one batch in the mode of training."""
        weights = [params[name] for name in self.names]
        _, moved = self.model.value.stateless_call(weights, self.frozen, rows, training=True)
        return {self.frozen_names[i]: moved[i] for i in self._moving()}

    def _moving(self) -> list[int]:
        names = enumerate(self.frozen_names)
        return [i for i, name in names if name.endswith((".moving_mean", ".moving_variance"))]
