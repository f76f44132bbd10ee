"""Model: network, likelihood and prior. Target: a model bound to data, the thing algorithms see.

Signs and scales, once for the whole library: everything is a log-probability (higher is better)
of the whole data set. `Target.log_likelihood` gives one number per example; the factor
`num_data / batch size` of a minibatch is applied in `Target.scaled_log_likelihood` and nowhere
else; the prior is never scaled.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import precision, tree
from bayeslearn.errors import ArgumentError, Shown, refuse
from bayeslearn.likelihoods import Likelihood
from bayeslearn.networks.adapters import as_network
from bayeslearn.priors import GaussianPrior, Laplace, Normal, ScaleMixture, restricted
from bayeslearn.tree import Array, PyTree


class Batch(NamedTuple):
    """Some rows of the data. `weight` says how often each counts; None: once. Padding has 0."""

    x: PyTree
    y: Array
    weight: Array | None = None


class Model(eqx.Module):
    """A network, a likelihood for its outputs, and a prior over its weights.

    `network` is one of `bl.networks`; a module of Equinox, Flax NNX or Keras (on JAX); a Flax
    Linen module, or (module, variables); or a pair (params, apply) or (init, apply). Weights that
    it has are where fitting starts. `bl.networks.adapters` says how each is called.
    `dtype` makes the network compute in another floating-point type than its own.

    `bayesian` says which leaves have a posterior, where not all do: name patterns (`"layers.1.*"`,
    or several in a list) or a function of the leaf's name. The other leaves are trained first and
    then held (`points="frozen"`), or trained along with q (`points="joint"`); families and
    matrices cover the Bayesian leaves only. MAP trains all alike.
    """

    network: Any
    likelihood: Likelihood
    prior: Normal | Laplace | ScaleMixture
    dtype: str | None = eqx.field(static=True)
    bayesian: tuple[str, ...] | Callable[[str], bool] | None = eqx.field(static=True)
    points: str = eqx.field(static=True)

    def __init__(
        self,
        network: Any,
        likelihood: Likelihood,
        prior: Normal | Laplace | ScaleMixture | None = None,
        *,
        dtype: Any = None,
        bayesian: str | Sequence[str] | Callable[[str], bool] | None = None,
        points: str = "frozen",
    ):
        if not isinstance(likelihood, Likelihood):
            refuse("likelihood", likelihood, "be one of bl.likelihoods, such as Gaussian()")
        prior = Normal() if prior is None else prior
        if not hasattr(prior, "bind"):
            refuse("prior", prior, "be one of bl.priors, such as Normal(scale=1.0)")
        self.network = as_network(network)
        self.likelihood = likelihood
        self.prior = prior
        self.dtype = None if dtype is None else _check_dtype(dtype)
        self.bayesian = _check_bayesian(bayesian)
        if points not in ("frozen", "joint"):
            refuse("points", points, 'be "frozen" or "joint"')
        self.points = points

    @precision.double_precision
    def bind(self, data: tuple[Any, Any], key: Array, num_data: int | None = None):
        """Check `data` = (x, y) and return the target and starting parameters."""
        x, y = check_data(data)
        likelihood, y = self.likelihood.bind(y)
        example = jax.tree.map(lambda leaf: leaf[0], x)
        with precision.user_precision():
            network_params = self.network.init(key, example, likelihood.num_outputs)
        if self.dtype is not None:
            network_params = tree.cast(network_params, self.dtype)
        network_params = _check_params(network_params)

        prior = self.prior.bind(network_params).joined(_own_prior(likelihood))
        dtypes = tuple(str(leaf.dtype) for leaf in jax.tree.leaves(network_params))
        target = Target(
            network=self.network,
            likelihood=likelihood,
            prior=prior,
            data=None,
            num_data=jnp.asarray(num_data or len(y), jnp.float64),
            dtypes=dtypes,
        )
        state_dtype = jnp.promote_types(target.dtype, jnp.float32)
        params = tree.cast(
            {"network": network_params, "likelihood": likelihood.init()}, state_dtype
        )
        target = target.on(target.batch((x, y)))
        _check_outputs(target, params, example)
        return target, params

    @precision.double_precision
    def hold(self, target: Target, params: PyTree) -> tuple[Target, PyTree]:
        """The density of the Bayesian leaves given the others as they are in `params`."""
        network = params["network"]
        names = tree.leaf_names(network)
        chosen = tuple(bool(_is_chosen(name, self.bayesian)) for name in names)
        if not any(chosen):
            refuse(
                "bayesian",
                Shown("patterns that name no leaf"),
                "name at least one leaf",
                f"The leaves are {names}.",
            )
        if all(chosen):
            return target, params
        parts = {
            keep: tree.select(network, tuple(keep == is_chosen for is_chosen in chosen))
            for keep in (True, False)
        }
        priors = {
            keep: restricted(self.prior, network, tuple(keep == c for c in chosen))
            for keep in parts
        }
        held = dataclasses.replace(
            target,
            prior=priors[True].bind(parts[True]).joined(_own_prior(target.likelihood)),
            held=parts[False],
            held_prior=priors[False].bind(parts[False]),
        )
        return held, {**params, "network": parts[True]}


class Target(eqx.Module):
    """A model bound to data: a density over parameters. A pytree; data and prior are leaves."""

    network: Any
    likelihood: Any
    prior: Any  # bound (see `priors`); None for a bare density
    data: Batch | None
    num_data: Array
    dtypes: tuple[str, ...] = eqx.field(static=True)
    density: Callable[[PyTree], Array] | None = eqx.field(static=True, default=None)
    start: PyTree = None
    held: PyTree = None  # the network's leaves that have no posterior
    held_prior: Any = None
    microbatch: int | None = eqx.field(static=True, default=None)  # rows at a time, see `fit`
    remat: bool = eqx.field(static=True, default=False)

    @staticmethod
    @precision.double_precision
    def from_log_density(log_density: Callable[[PyTree], Array], params: PyTree) -> Target:
        """Any unnormalised log-density of any pytree; `params` is where to start.

        It is evaluated in double precision. It counts as one observation with a flat prior.
        """
        if not callable(log_density):
            refuse("log_density", log_density, "be a function of the parameters")
        start = tree.double(_check_params(jax.tree.map(jnp.asarray, params)))
        shape = jax.eval_shape(log_density, start)
        if jax.tree.leaves(shape) != [shape] or shape.shape != ():
            refuse("log_density", Shown(f"a function that returns {shape}"), "return one number")
        return Target(
            network=None,
            likelihood=None,
            prior=None,
            data=None,
            num_data=jnp.asarray(1.0, jnp.float64),
            dtypes=(),
            density=log_density,
            start=start,
        )

    @property
    def dtype(self) -> Any:
        """The widest floating-point type of the network's weights."""
        return jnp.result_type(*self.dtypes) if self.dtypes else jnp.dtype(jnp.float64)

    @property
    def is_density(self) -> bool:
        return self.density is not None

    def on(self, data: Batch | None) -> Target:
        """The same density on other rows, which speak for as many data."""
        return dataclasses.replace(self, data=data)

    def rows(self) -> Batch:
        """The training rows; refused where they are gone, as in a posterior that was loaded."""
        assert self.data is not None
        if len(self.data.y) == 0:
            raise ArgumentError(
                "This needs the training rows, and they are not saved with a posterior: fit the"
                " model to them again."
            )
        return self.data

    @property
    def refreshes(self) -> bool:
        """Whether a part of the model has a posterior of its own, updated in closed form."""
        return any(getattr(part, "refreshes", False) for part in (self.likelihood, self.prior))

    def refresh(self, q: Any, key: Array) -> Target:
        """The exact coordinate update of those parts, given q; `fit` calls it between rounds."""
        target = self
        for name in ("likelihood", "prior"):
            part = getattr(target, name)
            if getattr(part, "refreshes", False):
                part = part.refresh(target, q, key)
                target = dataclasses.replace(target, **{name: part})
        return target

    def divergence(self) -> Array:
        """KL of those parts' posteriors from their priors."""
        parts: tuple[Any, ...] = (self.likelihood, self.prior)
        found = [part.divergence() for part in parts if hasattr(part, "divergence")]
        return sum(found, start=jnp.zeros((), jnp.float64))

    def marginal(self) -> Target:
        """The density that samplers see: what the likelihood can integrate out is gone."""
        if self.likelihood is None:
            return self
        return dataclasses.replace(self, likelihood=self.likelihood.marginal())

    def to_predict(self) -> Target:
        """The target whose likelihood is that of new observations."""
        return dataclasses.replace(self, likelihood=self.likelihood.to_predict())

    def batch(self, data: tuple[PyTree, Any], weight: Any = None) -> Batch:
        """Arrays on the device, floating-point ones in the network's dtype."""
        with precision.network_precision(self.dtype):
            x, y = jax.tree.map(self._cast, data)
        return Batch(x, y, None if weight is None else jnp.asarray(weight, jnp.float64))

    def _cast(self, leaf: Any) -> Array:
        leaf = np.asarray(leaf) if not isinstance(leaf, jax.Array) else leaf
        return jnp.asarray(leaf, self.dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else None)

    def weights(self, params: PyTree) -> PyTree:
        """The network's leaves, those held among them, in the network's own dtypes."""
        network = params["network"]
        if self.held is not None:
            network = eqx.combine(network, self.held)
        leaves, treedef = jax.tree.flatten(network)
        leaves = [w.astype(d) for w, d in zip(leaves, self.dtypes, strict=True)]
        return jax.tree.unflatten(treedef, leaves)

    def row_outputs(self, weights: PyTree, row: PyTree, key: Array | None = None) -> Array:
        """The network on one row; call it under `network_precision`."""
        return jnp.atleast_1d(self.network.apply(weights, row, key))

    def outputs(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """The network on a batch of rows, in its own precision: (rows, num_outputs)."""
        with precision.network_precision(self.dtype):
            weights = jax.tree.map(_held_wide, self.weights(params))

            def of_row(row: PyTree) -> Array:
                return self.row_outputs(weights, row, key)

            if self.remat:
                of_row = jax.checkpoint(of_row, policy=jax.checkpoint_policies.dots_saveable)
            split = tree.pieces(x, self.microbatch)
            if split is None:
                outputs = jax.vmap(of_row)(x)
            else:  # a gradient keeps a piece's rows alone, and evaluates it again
                parts = jax.lax.map(jax.checkpoint(jax.vmap(of_row)), split)
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
        if self.likelihood is not None and self.likelihood.is_marginal:
            assert self.data is not None
            if batch is not None and len(batch.y) != len(self.data.y):
                must = "hold all rows: with the noise integrated out they are not independent"
                refuse("batch", Shown(f"{len(batch.y)} rows"), must)
            return self.likelihood.log_marginal(self, params, key)
        terms = self.log_likelihood(params, batch, key)
        return jnp.sum(terms) * self.scale(batch)

    def scale(self, batch: Batch | None = None) -> Array:
        """num_data / number of real rows in the batch, each worth the mean weight of the data."""
        if self.density is not None:
            return jnp.asarray(1.0, jnp.float64)
        batch = self.rows() if batch is None else batch
        if batch.weight is None:
            return self.num_data / len(batch.y)
        # By rows and not by their weights, so that a minibatch's sum has no bias.
        rows = jnp.maximum(jnp.sum(batch.weight > 0), 1)
        return self.num_data / (rows * self.mean_weight)

    @property
    def mean_weight(self) -> Array | float:
        """Of the rows that count at all."""
        if self.data is None or self.data.weight is None:
            return 1.0
        return jnp.sum(self.data.weight) / jnp.sum(self.data.weight > 0)

    def log_prior_terms(self, params: PyTree) -> PyTree:
        """The log-prior of each leaf."""
        if self.prior is None:
            return jax.tree.map(lambda leaf: jnp.zeros((), jnp.float64), params)
        return self.prior.log_prob_terms(params)

    def log_prior(self, params: PyTree) -> Array:
        return tree.total(self.log_prior_terms(params))

    def log_joint(
        self, params: PyTree, batch: Batch | None = None, key: Array | None = None
    ) -> Array:
        """log p(D | params) + log p(params), estimated from a batch if one is given."""
        return self.scaled_log_likelihood(params, batch, key) + self.log_prior(params)


def _held_wide(w: Array) -> Array:
    """The same numbers; on a CPU a tall matrix is the transpose of a wide one that is kept as such.

    A product with few columns, as its gradient would be, takes up to twice as long there.
    """
    is_tall = w.ndim == 2 and w.shape[0] > w.shape[1]
    if not is_tall or jax.default_backend() != "cpu":
        return w
    return jax.lax.optimization_barrier(w.T).T


def _own_prior(likelihood: Any) -> GaussianPrior:
    """Of the likelihood's own parameters."""
    mean, scale = likelihood.prior()
    return GaussianPrior(mean, jax.tree.map(lambda s: 1.0 / s**2, scale))


def _check_bayesian(bayesian: Any) -> Any:
    if bayesian is None or callable(bayesian):
        return bayesian
    patterns = (bayesian,) if isinstance(bayesian, str) else bayesian
    patterns = tuple(patterns) if isinstance(patterns, Iterable) else ()
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        refuse("bayesian", bayesian, "be name patterns, such as ['layers.1.*'], or a function")
    return patterns


def _is_chosen(name: str, bayesian: Any) -> bool:
    if bayesian is None or callable(bayesian):
        return bayesian is None or bayesian(name)
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in bayesian)


def check_data(data: Any, name: str = "data") -> tuple[PyTree, np.ndarray]:
    """(x, y) as arrays with as many rows, all finite; refused otherwise."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        refuse(name, Shown(f"a {type(data).__name__}"), "be a pair (x, y)")
    x = check_inputs(data[0])
    try:
        y = np.asarray(data[1])
    except ValueError:
        refuse("y", Shown("rows of unequal lengths"), "be (rows,) or (rows, columns)")
    rows = len(jax.tree.leaves(x)[0])
    if y.ndim == 0 or len(y) != rows:
        refuse(
            "y",
            Shown(f"{len(y) if y.ndim else 'a single number'}"),
            f"have as many rows as x ({rows})",
        )
    return x, y


def check_inputs(x: Any) -> PyTree:
    """Inputs as arrays with one leading axis of rows; NaN, text and ragged rows are refused."""
    if hasattr(x, "to_numpy") and not isinstance(x, np.ndarray):
        x = x.to_numpy()
        # A frame of numbers beside flags comes as objects.
        if x.dtype == object and all(isinstance(value, numbers.Real) for value in x.flat):
            x = x.astype(np.float64)
    elif isinstance(x, list | tuple):
        try:
            x = np.asarray(x)
        except ValueError:
            refuse("x", Shown("rows of unequal lengths"), "be a rectangular table")
    x = jax.tree.map(np.asarray, x)
    leaves = jax.tree.leaves(x)
    names = [f"x.{n}" if len(leaves) > 1 else "x" for n in tree.leaf_names(x)]
    if not leaves:
        refuse("x", x, "hold at least one array")
    for name, leaf in zip(names, leaves, strict=True):
        if leaf.dtype.kind not in "iufb":
            refuse(
                name,
                Shown(f"dtype {leaf.dtype}"),
                "hold numbers",
                "Encode text columns as numbers first.",
            )
        if leaf.ndim == 0 or len(leaf) == 0:
            refuse(name, Shown(f"shape {leaf.shape}"), "have at least one row")
        if len(leaf) != len(leaves[0]):
            refuse(name, Shown(f"{len(leaf)} rows"), f"have {len(leaves[0])} rows like {names[0]}")
        if not tree.is_finite(leaf):
            rows = np.unique(np.argwhere(~np.isfinite(leaf))[:, 0])
            refuse(
                name,
                Shown(f"NaN or infinity in {len(rows)} row(s), the first being row {rows[0]}"),
                "be finite",
                "Drop or fill those rows.",
            )
    return x


def _check_dtype(dtype: Any) -> str:
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = ""
    if not name or not jnp.issubdtype(jnp.dtype(name), jnp.floating):
        refuse("dtype", dtype, 'be a floating-point type, such as "float32" or "float64"')
    return name


def check_like_training(x: PyTree, target: Target) -> None:
    """Refuse inputs of another shape than those the target was bound to."""
    assert target.data is not None
    if str(jax.tree.structure(x)) != str(jax.tree.structure(target.data.x)):
        refuse(
            "x", jax.tree.structure(x), f"be like in fitting: {jax.tree.structure(target.data.x)}"
        )
    for new, old in zip(jax.tree.leaves(x), jax.tree.leaves(target.data.x), strict=True):
        if new.shape[1:] != old.shape[1:]:
            refuse("x", new.shape, f"have rows of shape {old.shape[1:]}, as in fitting")


def _check_params(params: PyTree) -> PyTree:
    for name, leaf in zip(tree.leaf_names(params), jax.tree.leaves(params), strict=True):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            refuse(
                "params",
                Shown(f"{name} of type {jnp.result_type(leaf)}"),
                "hold floating-point arrays only",
            )
        if not bool(jnp.all(jnp.isfinite(leaf))):
            refuse("params", Shown(f"NaN or infinity in {name}"), "be finite")
    if not jax.tree.leaves(params):
        refuse("params", params, "hold at least one array", "The network has nothing to learn.")
    return params


def _check_outputs(target: Target, params: PyTree, example: PyTree) -> None:
    assert target.data is not None
    one_row = jax.tree.map(lambda leaf: leaf[:1], target.data.x)
    try:
        shape = jax.eval_shape(target.outputs, params, one_row).shape[1:]
    except ArgumentError:
        raise
    except Exception as error:
        shapes = jax.tree.map(lambda leaf: jnp.shape(leaf), example)
        raise ArgumentError(
            f"`network` must accept one example of shape {shapes}, but it failed:"
            f" {type(error).__name__}: {(str(error).splitlines() or [''])[0].rstrip('.')}."
        ) from error
    if shape != (target.likelihood.num_outputs,):
        refuse(
            "network",
            Shown(f"outputs of shape {shape}"),
            f"give {target.likelihood.num_outputs} output(s) for one example, as"
            f" {type(target.likelihood).__name__} needs for this y",
        )
