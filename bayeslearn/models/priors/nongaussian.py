"""Priors that are not Gaussian, bound to a network."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.models.priors.base import BoundPrior
from bayeslearn.models.priors.gaussian import GaussianPrior
from bayeslearn.models.priors.leaves import broadcast_like
from bayeslearn.numerics import LOG_2PI
from bayeslearn.tree import Array, Groups, PyTree


class ProductPrior(BoundPrior):
    """A non-Gaussian prior of the network times the Gaussian prior of the likelihood."""

    is_gaussian: ClassVar[bool] = False

    network: BoundPrior
    likelihood: GaussianPrior

    @property
    def is_independent(self) -> bool:  # type: ignore[override]
        """That of the network's prior."""
        return self.network.is_independent

    def to_train(self) -> BoundPrior:
        """The prior for members of an ensemble."""
        network = self.network.to_train()
        return self if network is self.network else network.join(self.likelihood)

    @property
    def title(self) -> str:
        """That of the network's prior."""
        return self.network.title

    def _parts(self, params: PyTree) -> dict[str, tuple[BoundPrior, PyTree]]:
        """The prior and the parameters of the network, and of the likelihood."""
        return {name: (getattr(self, name), params[name]) for name in ("network", "likelihood")}

    def log_prob_terms(self, params: PyTree) -> PyTree:
        """The normalised log-density of each leaf."""
        parts = self._parts(params)
        return {name: part.log_prob_terms(own) for name, (part, own) in parts.items()}

    def broadcast(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """Mean and precision of the Gaussians with the same moments."""
        found = {name: part.broadcast(own) for name, (part, own) in self._parts(params).items()}
        mean, prec = ({name: pair[i] for name, pair in found.items()} for i in (0, 1))
        return mean, prec

    def prec_blocks(self, params: PyTree, groups: Groups) -> tuple[Array, ...]:
        """The precision matrices of the Gaussians with the same moments."""
        return GaussianPrior(*self.broadcast(params)).prec_blocks(params, groups)

    def sample(self, key: Array, params: PyTree) -> PyTree:
        """One draw of all parameters."""
        keys = dict(zip(("network", "likelihood"), jax.random.split(key), strict=True))
        parts = self._parts(params)
        return {name: part.sample(keys[name], own) for name, (part, own) in parts.items()}


class LaplacePrior(BoundPrior):
    """Independent Laplace distributions: a mean and a scale for each leaf."""

    is_gaussian: ClassVar[bool] = False
    is_independent: ClassVar[bool] = True

    mean: PyTree
    scale: PyTree

    def join(self, likelihood: GaussianPrior) -> ProductPrior:
        """The prior of a whole model."""
        return ProductPrior(self, likelihood)

    def log_prob_terms(self, params: PyTree) -> PyTree:
        """The normalised log-density of each leaf."""

        def term(w: Array, mean: Array, scale: Array) -> Array:
            mean, scale = jnp.asarray(mean, w.dtype), jnp.asarray(scale, w.dtype)
            values = -jnp.abs(w - mean) / scale - jnp.log(2.0 * scale)
            return jnp.sum(jnp.broadcast_to(values, w.shape), dtype=jnp.float64)

        return jax.tree.map(term, params, self.mean, self.scale)

    def broadcast(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """Mean and precision of the Gaussian with the same moments."""
        prec = jax.tree.map(lambda s: 0.5 / s**2, self.scale)
        return broadcast_like(self.mean, params), broadcast_like(prec, params)

    def sample(self, key: Array, params: PyTree) -> PyTree:
        """One draw, with the shapes of `params`."""
        params = tree.double(params)
        flat = jax.random.laplace(key, (tree.size(params),), jnp.float64)
        noise, mean, scale = tree.unraveler(params)(flat), self.mean, self.scale
        return jax.tree.map(lambda e, m, s: m + s * e, noise, mean, scale)


class ScaleMixturePrior(BoundPrior):
    """Independent mixtures of Gaussians with mean zero and different scales."""

    is_gaussian: ClassVar[bool] = False
    is_independent: ClassVar[bool] = True

    scales: Array
    weights: Array

    def join(self, likelihood: GaussianPrior) -> ProductPrior:
        """The prior of a whole model."""
        return ProductPrior(self, likelihood)

    def log_prob_terms(self, params: PyTree) -> PyTree:
        """The normalised log-density of each leaf."""

        def term(w: Array) -> Array:
            scales, weights = self.scales.astype(w.dtype), self.weights.astype(w.dtype)
            z = w[..., None] / scales
            parts = jnp.log(weights / scales) - 0.5 * (z**2 + LOG_2PI)
            return jnp.sum(jax.nn.logsumexp(parts, axis=-1), dtype=jnp.float64)

        return jax.tree.map(term, params)

    def broadcast(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """Mean and precision of the Gaussian with the same moments."""
        prec = 1.0 / jnp.sum(self.weights * self.scales**2)
        return jax.tree.map(jnp.zeros_like, params), jax.tree.map(
            lambda w: jnp.full_like(w, prec), params
        )

    def sample(self, key: Array, params: PyTree) -> PyTree:
        """One draw, with the shapes of `params`."""
        key_scale, key_noise = jax.random.split(key)
        k = tree.size(params)
        which = jax.random.choice(key_scale, len(self.scales), (k,), p=self.weights)
        noise = jax.random.normal(key_noise, (k,), jnp.float64)
        return tree.unraveler(params)(self.scales[which] * noise)
