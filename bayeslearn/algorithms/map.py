"""MAP: the plain network, trained to the mode of its posterior.

    maximise  log p(D | w) + log p(w)

with any Optax optimiser on the objective divided by the number of data, so that learning rates do
not depend on the size of the data. It is the baseline, and the warm start of most other methods.
Its predictive has the likelihood's noise, but no uncertainty about the weights. With a learned
noise scale and more weights than rows the joint mode interpolates with almost no noise: pass
`validation` data for early stopping, or set a known noise scale.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bayeslearn.algorithms.base import Capabilities, InfoFields, hyper
from bayeslearn.algorithms.optimizers import (
    Optimizer,
    Options,
    check_optimizer,
    make_optimizer,
)
from bayeslearn.algorithms.sized import TrainedNetwork
from bayeslearn.data.rows import Batch
from bayeslearn.families import Point
from bayeslearn.models.priors.checks import require_fixed_scale, require_known_scale
from bayeslearn.models.target import Target
from bayeslearn.tree import Array, PyTree


class MAPState(NamedTuple):
    """The weights, and the optimiser's state."""

    position: PyTree
    optimizer_state: PyTree


class MAPInfo(NamedTuple):
    """The objective of a step."""

    log_joint: Array  # log p(D, w), estimated from the batch
    nll: Array  # -log p(D | w), estimated from the batch


def optimizer_step(
    optimizer: optax.GradientTransformation,
    optimizer_state: PyTree,
    key: Array,
    target: Target,
    params: PyTree,
    batch: Batch | None,
    learn_noise: bool,
) -> tuple[PyTree, PyTree, MAPInfo]:
    """The weights and the optimiser's state after a step towards the mode."""

    def loss(params: PyTree) -> tuple[Array, MAPInfo]:
        log_likelihood = target.scaled_log_likelihood(params, batch, key)
        log_joint = log_likelihood + target.log_prior(params)
        return -log_joint / target.num_data, MAPInfo(log_joint, -log_likelihood)

    gradient, info = jax.grad(loss, has_aux=True)(params)
    if not learn_noise and not target.is_density:
        frozen = jax.tree.map(jnp.zeros_like, gradient["likelihood"])
        gradient = gradient | {"likelihood": frozen}
    updates, optimizer_state = optimizer.update(gradient, optimizer_state, params)
    position = jax.tree.map(lambda w, u: w + jnp.asarray(u, w.dtype), params, updates)
    return position, optimizer_state, info


class MAP(TrainedNetwork):
    """The plain network: the mode of the posterior, by any Optax optimiser.

    >>> posterior = bl.fit(model, bl.MAP(learning_rate=0.01), (x, y), seed=0, num_steps=500)
    >>> float(posterior.predict(x).epistemic.max())
    0.0
    """

    name: ClassVar[str] = "map"
    title: ClassVar[str] = "maximum a posteriori, the plain network"
    capabilities: ClassVar[Capabilities] = Capabilities(has_lower_bound=False)
    info_fields: ClassVar[InfoFields] = InfoFields(progress=("nll",), small_only=("log_joint",))

    learn_noise: bool = hyper(True, "False: the likelihood's own parameters are frozen")
    optimizer: Optimizer = hyper("adam", "name of an Optax optimiser, or the object", free=True)
    optimizer_options: Options = hyper((), "further arguments of the optimiser", free=True)

    def __check_init__(self) -> None:
        check_optimizer(self.optimizer, self.optimizer_options)

    def _optimizer(self) -> optax.GradientTransformation:
        return make_optimizer(self.optimizer, self.optimizer_options, self.schedule())

    def check(self, target: Target, params: PyTree) -> None:
        """Refuse a prior whose scales are learned or unknown."""
        require_known_scale(target.prior, self.name)
        require_fixed_scale(
            target.prior,
            "map: the best scale of a single point is zero",
            "Use bl.Laplace(), or a variational method.",
        )

    def init(self, key: Array, target: Target, params: PyTree) -> MAPState:
        """At `params`."""
        return MAPState(params, self._optimizer().init(params))

    def step(
        self, key: Array, target: Target, state: MAPState, batch: Batch | None
    ) -> tuple[MAPState, MAPInfo]:
        """One step of the optimiser."""
        position, optimizer_state, info = optimizer_step(
            self._optimizer(),
            state.optimizer_state,
            key,
            target,
            state.position,
            batch,
            self.learn_noise,
        )
        return MAPState(position, optimizer_state), info

    def approximation(self, target: Target, state: MAPState, draws: PyTree | None = None) -> Point:
        """A point mass at the weights."""
        return Point(state.position)
