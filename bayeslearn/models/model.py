"""Model: a network, a likelihood and a prior."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Callable, Iterable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bayeslearn import markup, precision, tree
from bayeslearn.data.rows import Data, check_data, total_weight
from bayeslearn.errors import ArgumentError, Shown, moved_keywords, refuse
from bayeslearn.models.likelihoods.base import Likelihood
from bayeslearn.models.networks.adapters import ADAPTERS, as_network
from bayeslearn.models.priors.base import Prior
from bayeslearn.models.priors.gaussian import GaussianPrior
from bayeslearn.models.priors.specs import Normal
from bayeslearn.models.protocols import Network
from bayeslearn.models.target import Target, check_params
from bayeslearn.sizes import BYTES_PER_WEIGHT, TRAINING_COPIES, check_memory
from bayeslearn.tree import Array, PyTree

FROZEN = ("train", "given", "joint")
Selection = tuple[str, ...] | Callable[[str], bool] | None  # of leaves by name; None: all


class Model(eqx.Module):
    """A network, a likelihood for its outputs, and a prior over its weights.

    `network` is one of `bl.networks`; a module of Equinox, Flax NNX or Keras (on JAX); a Flax
    Linen module, or (module, variables); or a pair (params, apply) or (init, apply). If it has
    weights, fitting starts from them. `bl.networks.adapters` documents how each is called.
    `dtype` is the floating-point type the network computes in; default: its own. The default prior
    is `Normal.by_size()`.

    `bayesian` selects the leaves that have a posterior: name patterns (`"layers.1.*"`, or several
    in a list) or a function of the leaf's name; default: all. The other leaves are trained, then
    frozen (`frozen="train"`), frozen at the values given (`frozen="given"`: the network's own, or
    `init=` of `fit`), or trained along with q (`frozen="joint"`). Families and matrices cover the
    Bayesian leaves only. MAP trains all leaves but those given.

    >>> network, likelihood = bl.networks.MLP([20, 20]), bl.likelihoods.Gaussian()
    >>> whole = bl.Model(network, likelihood, bl.priors.Normal(scale=1.0))
    >>> last_layer = bl.Model(network, likelihood, bayesian="layers.2.*")
    """

    network: Network
    likelihood: Likelihood
    prior: Prior
    dtype: str | None = eqx.field(static=True)
    bayesian: Selection = eqx.field(static=True)
    frozen: str = eqx.field(static=True)

    @moved_keywords(points='frozen="train" (was "frozen") or frozen="joint"')
    def __init__(
        self,
        network: object,
        likelihood: Likelihood,
        prior: Prior | None = None,
        *,
        dtype: DTypeLike | None = None,
        bayesian: str | Sequence[str] | Callable[[str], bool] | None = None,
        frozen: str = "train",
    ):
        if not isinstance(likelihood, Likelihood):
            refuse("likelihood", likelihood, "be one of bl.likelihoods, such as Gaussian()")
        prior = Normal.by_size() if prior is None else prior
        if not isinstance(prior, Prior):
            refuse("prior", prior, "be one of bl.priors, such as Normal(scale=1.0)")
        self.network = as_network(network)
        self.likelihood = likelihood
        self.prior = prior
        self.dtype = None if dtype is None else _check_dtype(dtype)
        self.bayesian = _check_bayesian(bayesian)
        if frozen not in FROZEN:
            refuse("frozen", frozen, "be one of " + ", ".join(map(repr, FROZEN)))
        self.frozen = frozen

    def _repr_html_(self) -> str:
        about = {"network": self.network, "likelihood": self.likelihood, "prior": self.prior}
        rows = {name: repr(part) for name, part in about.items()}
        if self.dtype is not None:
            rows["dtype"] = self.dtype
        return markup.block("Model", markup.pairs(rows))

    @precision.double_precision
    def bind(self, data: Data, key: Array, num_data: float | None = None) -> tuple[Target, PyTree]:
        """Check `data`, (x, y) or (x, y, weight), and return the target and starting parameters."""
        x, y, weight = check_data(data)
        likelihood, y = self.likelihood.bind(y, weight)
        example = jax.tree.map(lambda leaf: leaf[0], x)
        _check_size(self.network, example, likelihood.num_outputs)
        with precision.user_precision():
            network_params = self.network.init(key, example, likelihood.num_outputs)
        if self.dtype is not None:
            network_params = tree.cast(network_params, self.dtype)
        network_params = check_params(network_params)

        prior = self.prior.bind(network_params).join(_own_prior(likelihood))
        dtypes = tuple(str(leaf.dtype) for leaf in jax.tree.leaves(network_params))
        target = Target(
            network=self.network,
            likelihood=likelihood,
            prior=prior,
            data=None,
            num_data=jnp.asarray(num_data or total_weight(y, weight), jnp.float64),
            dtypes=dtypes,
        )
        state_dtype = jnp.promote_types(target.dtype, jnp.float32)
        params = tree.cast(
            {"network": network_params, "likelihood": likelihood.init()}, state_dtype
        )
        target = target.with_data(target.batch((x, y), weight))
        _check_outputs(target, params, example)
        return target, params

    @precision.double_precision
    def freeze(self, target: Target, params: PyTree) -> tuple[Target, PyTree]:
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
        others = tuple(not is_chosen for is_chosen in chosen)
        bayesian, frozen = tree.select(network, chosen), tree.select(network, others)
        prior = self.prior.restrict(network, chosen).bind(bayesian)
        conditioned = dataclasses.replace(
            target,
            prior=prior.join(_own_prior(target.likelihood)),
            frozen=frozen,
            frozen_prior=self.prior.restrict(network, others).bind(frozen),
        )
        return conditioned, {**params, "network": bayesian}


def _check_size(network: Network, example: PyTree, num_outputs: int) -> None:
    """Refuse one of our networks whose weights do not fit into memory."""
    kind = type(network)
    if isinstance(network, ADAPTERS) or not kind.__module__.startswith("bayeslearn."):
        return  # the code of others, which is run once and no more
    key = jax.eval_shape(lambda: jax.random.key(0))
    shapes = jax.eval_shape(lambda key: network.init(key, example, num_outputs), key)
    weights = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    shown = Shown(f"{kind.__name__} with {weights:,} weights and {num_outputs:,} output(s)")
    needed = TRAINING_COPIES * BYTES_PER_WEIGHT * weights
    check_memory("network", shown, needed, "its weights, their gradient and an average of it")


def _own_prior(likelihood: Likelihood) -> GaussianPrior:
    """The prior of the likelihood's own parameters."""
    mean, scale = likelihood.prior()
    return GaussianPrior(mean, jax.tree.map(lambda s: 1.0 / s**2, scale))


def _check_bayesian(bayesian: str | Sequence[str] | Selection) -> Selection:
    """A static selection of leaves."""
    if bayesian is None or callable(bayesian):
        return bayesian
    patterns = (bayesian,) if isinstance(bayesian, str) else bayesian
    patterns = tuple(patterns) if isinstance(patterns, Iterable) else ()
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        refuse("bayesian", bayesian, "be name patterns, such as ['layers.1.*'], or a function")
    return patterns


def _is_chosen(name: str, bayesian: Selection) -> bool:
    """Whether the leaf has a posterior."""
    if bayesian is None or callable(bayesian):
        return bayesian is None or bayesian(name)
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in bayesian)


def _check_dtype(dtype: DTypeLike) -> str:
    """The name of a floating-point type."""
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = ""
    if not name or not jnp.issubdtype(jnp.dtype(name), jnp.floating):
        refuse("dtype", dtype, 'be a floating-point type, such as "float32" or "float64"')
    return name


def _check_outputs(target: Target, params: PyTree, example: PyTree) -> None:
    """Refuse a network that fails on a row, or returns too few or too many outputs."""
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
