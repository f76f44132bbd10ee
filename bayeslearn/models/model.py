"""Model: a network, a likelihood and a prior."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn import precision, tree
from bayeslearn.data.rows import Data, check_data, total_weight
from bayeslearn.errors import ArgumentError, Shown, moved_keywords, refuse
from bayeslearn.models.likelihoods.base import Likelihood
from bayeslearn.models.networks.adapters import as_network
from bayeslearn.models.priors.gaussian import GaussianPrior
from bayeslearn.models.priors.specs import Laplace, Normal, ScaleMixture, restricted
from bayeslearn.models.target import Target, _check_params
from bayeslearn.tree import Array, PyTree

FROZEN = ("train", "given", "joint")


class Model(eqx.Module):
    """A network, a likelihood for its outputs, and a prior over its weights.

    `network` is one of `bl.networks`; a module of Equinox, Flax NNX or Keras (on JAX); a Flax
    Linen module, or (module, variables); or a pair (params, apply) or (init, apply). Weights that
    it has are where fitting starts. `bl.networks.adapters` says how each is called.
    `dtype` makes the network compute in another floating-point type than its own.

    `bayesian` says which leaves have a posterior, where not all do: name patterns (`"layers.1.*"`,
    or several in a list) or a function of the leaf's name. The other leaves are frozen after they
    were trained (`frozen="train"`), frozen as they come (`frozen="given"`), or trained along with q
    (`frozen="joint"`); families and matrices cover the Bayesian leaves only. MAP trains all alike.
    """

    network: Any
    likelihood: Likelihood
    prior: Normal | Laplace | ScaleMixture
    dtype: str | None = eqx.field(static=True)
    bayesian: tuple[str, ...] | Callable[[str], bool] | None = eqx.field(static=True)
    frozen: str = eqx.field(static=True)

    @moved_keywords(points='frozen="train" (was "frozen") or frozen="joint"')
    def __init__(
        self,
        network: Any,
        likelihood: Likelihood,
        prior: Normal | Laplace | ScaleMixture | None = None,
        *,
        dtype: Any = None,
        bayesian: str | Sequence[str] | Callable[[str], bool] | None = None,
        frozen: str = "train",
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
        if frozen not in FROZEN:
            refuse("frozen", frozen, "be one of " + ", ".join(map(repr, FROZEN)))
        self.frozen = frozen

    @precision.double_precision
    def bind(self, data: Data, key: Array, num_data: float | None = None) -> tuple[Target, PyTree]:
        """Check `data`, (x, y) or (x, y, weight), and return the target and starting parameters."""
        x, y, weight = check_data(data)
        likelihood, y = self.likelihood.bind(y, weight)
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
        parts = {
            keep: tree.select(network, tuple(keep == is_chosen for is_chosen in chosen))
            for keep in (True, False)
        }
        priors = {
            keep: restricted(self.prior, network, tuple(keep == c for c in chosen))
            for keep in parts
        }
        frozen = dataclasses.replace(
            target,
            prior=priors[True].bind(parts[True]).joined(_own_prior(target.likelihood)),
            frozen=parts[False],
            frozen_prior=priors[False].bind(parts[False]),
        )
        return frozen, {**params, "network": parts[True]}


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


def _check_dtype(dtype: Any) -> str:
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = ""
    if not name or not jnp.issubdtype(jnp.dtype(name), jnp.floating):
        refuse("dtype", dtype, 'be a floating-point type, such as "float32" or "float64"')
    return name


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
