"""Target: a model bound to data, the density that algorithms approximate or sample.

Signs and scales of the whole library: everything is a log-probability (higher is better) of the
whole data set. `Target.log_likelihood` returns one number per example. The factor
`num_data / batch size` of a minibatch is applied in `Target.scaled_log_likelihood` and nowhere
else. The prior is never scaled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from bayeslearn import precision, tree
from bayeslearn.data.rows import Batch
from bayeslearn.errors import ArgumentError, Shown, refuse
from bayeslearn.models.constraints import (
    Constraint,
    Kind,
    constrain,
    kinds_of,
    unconstrain,
    unconstrained,
)
from bayeslearn.models.likelihoods.base import Likelihood
from bayeslearn.models.priors.base import BoundPrior
from bayeslearn.models.protocols import Approximation, Network, WithRows
from bayeslearn.tree import Array, PyTree


class Target(eqx.Module):
    """A model bound to data: a density over parameters. A pytree; data and prior are leaves.

    A bare density (`from_log_density`, `is_density`) has no network, likelihood or prior.
    """

    network: Network
    likelihood: Likelihood
    prior: BoundPrior | None
    data: Batch | None
    num_data: Array
    dtypes: tuple[str, ...] = eqx.field(static=True)
    density: Callable[[PyTree], Array] | None = eqx.field(static=True, default=None)
    start: PyTree = None
    draw_start: Callable[[Array], PyTree] | None = eqx.field(static=True, default=None)
    frozen: PyTree = None  # the network's leaves that have no posterior
    frozen_prior: BoundPrior | None = None
    microbatch: int | None = eqx.field(static=True, default=None)  # rows at a time, see `fit`
    remat: bool = eqx.field(static=True, default=False)
    by_layer: bool = eqx.field(static=True, default=False)  # `apply_rows`, where there is one
    kinds: tuple[Kind, ...] | None = eqx.field(static=True, default=None)  # of a density's leaves

    @staticmethod
    @precision.double_precision
    def from_log_density(
        log_density: Callable[[PyTree], Array],
        params: PyTree,
        init: Callable[[Array], PyTree] | None = None,
        constraints: Mapping[str, Constraint] | None = None,
    ) -> Target:
        """Any unnormalised log-density of any pytree; `params` are the initial values.

        It is evaluated in double precision, and counts as one observation with a flat prior.
        `constraints` maps names of parameters (or patterns) to "positive", "ordered", "simplex" or
        ("interval", low, high): they are inferred as real numbers, with the Jacobian of the
        transformation. `params`, `init`, draws, `summary` and ArviZ have the constrained values,
        `posterior.family` the real numbers.
        `init(key)` draws parameters to start from: each chain of a sampler then has a start of its
        own, so that R-hat sees whether they find different modes. Draw widely.

        A normal with mean 3, as a density of one number that a Gaussian fits exactly:

        >>> target = bl.Target.from_log_density(lambda w: -0.5 * (w["a"] - 3.0) ** 2, {"a": 0.0})
        >>> posterior = bl.fit(target, bl.Laplace(), seed=0)
        >>> round(float(posterior.family.mean["a"]), 2), round(float(posterior.family.std["a"]), 2)
        (3.0, 1.0)
        """
        if not callable(log_density):
            refuse("log_density", log_density, "be a function of the parameters")
        if init is not None and not callable(init):
            refuse("init", init, "be a function that draws parameters, given a key")
        start = tree.double(check_params(jax.tree.map(jnp.asarray, params)))
        shape = jax.eval_shape(log_density, start)
        density, draw_start, kinds = log_density, init, None
        if constraints:
            kinds = kinds_of(constraints, start)
            density, draw_start = unconstrained(kinds, log_density, init)
            start = unconstrain(kinds, start)
        if jax.tree.leaves(shape) != [shape] or shape.shape != ():
            refuse("log_density", Shown(f"a function that returns {shape}"), "return one number")
        nothing: PyTree = None
        return Target(
            network=nothing,
            likelihood=nothing,
            prior=None,
            data=None,
            num_data=jnp.asarray(1.0, jnp.float64),
            dtypes=(),
            density=density,
            start=start,
            draw_start=draw_start,
            kinds=kinds,
        )

    @precision.double_precision
    def constrained(self, params: PyTree) -> PyTree:
        """Parameters of a density as its user knows them; leading axes are draws."""
        return params if self.kinds is None else constrain(self.kinds, params)

    @property
    def dtype(self) -> np.dtype:
        """The widest floating-point type of the network's weights."""
        return jnp.result_type(*self.dtypes) if self.dtypes else jnp.dtype(jnp.float64)

    @property
    def is_density(self) -> bool:
        """Whether it is a bare density, without network, likelihood and prior."""
        return self.density is not None

    def with_data(self, data: Batch | None) -> Target:
        """The same density evaluated on other rows; `num_data` is unchanged."""
        return dataclasses.replace(self, data=data)

    def tempered(self, temperature: Array | float) -> Target:
        """The target with its likelihood to the power of 1 / temperature; a density as it is."""
        if self.is_density:
            return self
        return dataclasses.replace(self, num_data=self.num_data / temperature)

    def rows(self) -> Batch:
        """The training rows; refused if there are none, as in a posterior that was loaded."""
        assert self.data is not None
        if len(self.data.y) == 0:
            raise ArgumentError(
                "This needs the training rows, which are not saved with a posterior: fit the model"
                " again."
            )
        return self.data

    @property
    def refreshes(self) -> bool:
        """Whether likelihood or prior have a latent part, updated in closed form by `refresh`."""
        if self.is_density:
            return False
        return self.likelihood.refreshes or (self.prior is not None and self.prior.refreshes)

    def refresh(self, q: Approximation, key: Array) -> Target:
        """The exact coordinate update of those parts, given q; `fit` calls it between rounds."""
        target = self
        if not target.is_density and target.likelihood.refreshes:
            likelihood = target.likelihood.refresh(target, q, key)
            target = dataclasses.replace(target, likelihood=likelihood)
        if target.prior is not None and target.prior.refreshes:
            target = dataclasses.replace(target, prior=target.prior.refresh(target, q, key))
        return target

    def divergence(self) -> Array:
        """KL of the likelihood's latent part from its prior, a term of the lower bound."""
        zero = jnp.zeros((), jnp.float64)
        return zero if self.is_density else zero + self.likelihood.divergence()

    def marginal(self) -> Target:
        """The density for samplers, with the likelihood's latent part integrated out."""
        if self.is_density:
            return self
        return dataclasses.replace(self, likelihood=self.likelihood.marginal())

    def to_train(self) -> Target:
        """The target whose mode is a good network, for members of an ensemble."""
        if self.is_density or self.prior is None:
            return self
        trained = dataclasses.replace(self, likelihood=self.likelihood.to_train())
        return trained.with_prior(self.prior.to_train())

    def with_prior(self, prior: BoundPrior) -> Target:
        """The same likelihood with another prior."""
        return self if prior is self.prior else dataclasses.replace(self, prior=prior)

    def to_predict(self) -> Target:
        """The target with the likelihood of new observations."""
        return dataclasses.replace(self, likelihood=self.likelihood.to_predict())

    def batch(self, data: tuple[PyTree, ArrayLike], weight: ArrayLike | None = None) -> Batch:
        """Rows as arrays on the device, floating-point ones in the network's dtype."""
        with precision.network_precision(self.dtype):
            x, y = jax.tree.map(self._cast, data)
        return Batch(x, y, None if weight is None else jnp.asarray(weight, jnp.float64))

    def _cast(self, leaf: ArrayLike) -> Array:
        leaf = np.asarray(leaf) if not isinstance(leaf, jax.Array) else leaf
        return jnp.asarray(leaf, self.dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else None)

    def weights(self, params: PyTree) -> PyTree:
        """All leaves of the network, frozen ones too, in the network's dtypes."""
        network = params["network"]
        if self.frozen is not None:
            network = eqx.combine(network, self.frozen)
        leaves, treedef = jax.tree.flatten(network)
        leaves = [w.astype(d) for w, d in zip(leaves, self.dtypes, strict=True)]
        return jax.tree.unflatten(treedef, leaves)

    def row_outputs(self, weights: PyTree, row: PyTree, key: Array | None = None) -> Array:
        """The network on one row; call it under `network_precision`."""
        return jnp.atleast_1d(self.network.apply(weights, row, key))

    def outputs(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """The network on a batch of rows, in its own precision: (rows, num_outputs).

        Each row has a part of the key, so that rows have masks of their own.
        """
        with precision.network_precision(self.dtype):
            weights = jax.tree.map(_stored_wide, self.weights(params))

            def of_row(row: PyTree, own: Array | None = None) -> Array:
                return self.row_outputs(weights, row, own)

            rows: tuple[PyTree, ...] = (x,)
            if key is not None:
                rows = (x, jax.random.split(key, len(jax.tree.leaves(x)[0])))
            if self.remat:
                of_row = jax.checkpoint(of_row, policy=jax.checkpoint_policies.dots_saveable)
            of_rows = jax.vmap(of_row)
            if self.by_layer and isinstance(self.network, WithRows):
                rows, of_rows = (x,), partial(self.network.apply_rows, weights)
            split = tree.microbatches(rows, self.microbatch)
            if split is None:
                outputs = of_rows(*rows)
            else:  # a gradient stores one microbatch at a time, and evaluates it again
                by_rows = jax.checkpoint(of_rows)
                parts = jax.lax.map(lambda part: by_rows(*part), split)
                outputs = jnp.moveaxis(parts, 0, 1).reshape(-1, *parts.shape[2:])
        return outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))

    def log_likelihood(
        self, params: PyTree, batch: Batch | None = None, key: Array | None = None
    ) -> Array:
        """log p(y_i | x_i, params) times its weight, one number per example in double precision."""
        if self.density is not None:
            return jnp.asarray(self.density(params), jnp.float64)[None]
        batch = self.rows() if batch is None else batch
        outputs = self.outputs(params, batch.x, key)
        terms = jax.vmap(self.likelihood.log_prob, (0, 0, None))(
            outputs, batch.y, params["likelihood"]
        ).astype(jnp.float64)
        if batch.weight is None:
            return terms
        return batch.weight * jnp.where(batch.weight > 0, terms, 0.0)

    def scaled_log_likelihood(
        self, params: PyTree, batch: Batch | None = None, key: Array | None = None
    ) -> Array:
        """Unbiased estimate of the whole data set's log-likelihood from a batch."""
        if not self.is_density and self.likelihood.is_marginal:
            assert self.data is not None
            if batch is not None and len(batch.y) != len(self.data.y):
                must = "hold all rows: they are not independent with the noise integrated out"
                refuse("batch", Shown(f"{len(batch.y)} rows"), must)
            return self.likelihood.log_marginal(self, params, key)
        terms = self.log_likelihood(params, batch, key)
        return jnp.sum(terms) * self.scale(batch)

    def scale(self, batch: Batch | None = None) -> Array:
        """num_data / (rows of the batch that are not padding, times the mean weight of a row)."""
        if self.density is not None:
            return jnp.asarray(1.0, jnp.float64)
        batch = self.rows() if batch is None else batch
        if batch.weight is None:
            return self.num_data / len(batch.y)
        # By the number of rows, not the sum of their weights, which would bias a minibatch.
        rows = jnp.maximum(jnp.sum(batch.weight > 0), 1)
        return self.num_data / (rows * self.mean_weight)

    @property
    def mean_weight(self) -> Array | float:
        """Mean weight of the rows of positive weight."""
        if self.data is None or self.data.weight is None:
            return 1.0
        return jnp.sum(self.data.weight) / jnp.sum(self.data.weight > 0)

    def log_prior_terms(self, params: PyTree) -> PyTree:
        """The log-prior of each leaf."""
        if self.prior is None:
            return jax.tree.map(lambda leaf: jnp.zeros((), jnp.float64), params)
        return self.prior.log_prob_terms(params)

    def log_prior(self, params: PyTree) -> Array:
        """log p(params), normalised; 0 for a bare density."""
        return tree.total(self.log_prior_terms(params))

    def log_joint(
        self, params: PyTree, batch: Batch | None = None, key: Array | None = None
    ) -> Array:
        """log p(D | params) + log p(params), estimated from a batch if one is given."""
        return self.scaled_log_likelihood(params, batch, key) + self.log_prior(params)


def _stored_wide(w: Array) -> Array:
    """The same values; on a CPU a tall matrix is stored as the transpose of a wide one.

    A product with few columns, as in the gradient of a tall one, takes up to twice as long there.
    """
    is_tall = w.ndim == 2 and w.shape[0] > w.shape[1]
    if not is_tall or jax.default_backend() != "cpu":
        return w
    return jax.lax.optimization_barrier(w.T).T


def check_like_training(x: PyTree, target: Target) -> None:
    """Refuse inputs whose rows differ in shape from the training rows."""
    assert target.data is not None
    if str(jax.tree.structure(x)) != str(jax.tree.structure(target.data.x)):
        refuse(
            "x", jax.tree.structure(x), f"be like in fitting: {jax.tree.structure(target.data.x)}"
        )
    for new, old in zip(jax.tree.leaves(x), jax.tree.leaves(target.data.x), strict=True):
        if new.shape[1:] != old.shape[1:]:
            refuse("x", new.shape, f"have rows of shape {old.shape[1:]}, as in fitting")


def check_params(params: PyTree) -> PyTree:
    """Refuse parameters that are not finite floating-point arrays."""
    for name, leaf in zip(tree.leaf_names(params), jax.tree.leaves(params), strict=True):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            refuse(
                "params",
                Shown(f"{name} of type {jnp.result_type(leaf)}"),
                "hold floating-point arrays only",
            )
    if not tree.all_finite_compiled(params):
        leaves = dict(zip(tree.leaf_names(params), jax.tree.leaves(params), strict=True))
        name = next(name for name, leaf in leaves.items() if not np.all(np.isfinite(leaf)))
        refuse("params", Shown(f"NaN or infinity in {name}"), "be finite")
    if not jax.tree.leaves(params):
        refuse("params", params, "hold at least one array", "The network has nothing to learn.")
    return params
