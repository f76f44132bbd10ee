"""Priors that are not Gaussian, bound to a network."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from bayeslearn import tree
from bayeslearn.models.priors.correlated import LOG_2PI
from bayeslearn.models.priors.gaussian import GaussianPrior
from bayeslearn.models.priors.leaves import Groups, _like
from bayeslearn.tree import Array, PyTree


class ProductPrior(eqx.Module):
    """A network's prior that is not Gaussian, beside the Gaussian of the likelihood's own."""

    is_gaussian: ClassVar[bool] = False
    is_independent: ClassVar[bool] = True

    network: Any
    likelihood: GaussianPrior

    def _parts(self, params: PyTree) -> dict[str, tuple[Any, PyTree]]:
        return {name: (getattr(self, name), params[name]) for name in ("network", "likelihood")}

    def log_prob_terms(self, params: PyTree) -> PyTree:
        parts = self._parts(params)
        return {name: part.log_prob_terms(own) for name, (part, own) in parts.items()}

    def log_prob(self, params: PyTree) -> Array:
        return tree.total(self.log_prob_terms(params))

    def broadcast(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """Mean and precision of the Gaussians with the same moments."""
        found = {name: part.broadcast(own) for name, (part, own) in self._parts(params).items()}
        mean, prec = ({name: pair[i] for name, pair in found.items()} for i in (0, 1))
        return mean, prec

    def prec_blocks(self, params: PyTree, groups: Groups) -> tuple[Array, ...]:
        return GaussianPrior(*self.broadcast(params)).prec_blocks(params, groups)

    def sample(self, key: Array, params: PyTree) -> PyTree:
        keys = dict(zip(("network", "likelihood"), jax.random.split(key), strict=True))
        parts = self._parts(params)
        return {name: part.sample(keys[name], own) for name, (part, own) in parts.items()}


class LaplacePrior(eqx.Module):
    """Independent double exponentials: a mean and a scale for each leaf."""

    mean: PyTree
    scale: PyTree

    def joined(self, likelihood: GaussianPrior) -> ProductPrior:
        return ProductPrior(self, likelihood)

    def log_prob_terms(self, params: PyTree) -> PyTree:
        def term(w: Array, mean: Array, scale: Array) -> Array:
            mean, scale = jnp.asarray(mean, w.dtype), jnp.asarray(scale, w.dtype)
            values = -jnp.abs(w - mean) / scale - jnp.log(2.0 * scale)
            return jnp.sum(jnp.broadcast_to(values, w.shape), dtype=jnp.float64)

        return jax.tree.map(term, params, self.mean, self.scale)

    def broadcast(self, params: PyTree) -> tuple[PyTree, PyTree]:
        prec = jax.tree.map(lambda s: 0.5 / s**2, self.scale)
        return _like(self.mean, params), _like(prec, params)

    def sample(self, key: Array, params: PyTree) -> PyTree:
        params = tree.double(params)
        flat = jax.random.laplace(key, (tree.size(params),), jnp.float64)
        noise, mean, scale = tree.unraveler(params)(flat), self.mean, self.scale
        return jax.tree.map(lambda e, m, s: m + s * e, noise, mean, scale)


class ScaleMixturePrior(eqx.Module):
    """Each weight from one of several Gaussians around zero."""

    scales: Array
    weights: Array

    def joined(self, likelihood: GaussianPrior) -> ProductPrior:
        return ProductPrior(self, likelihood)

    def log_prob_terms(self, params: PyTree) -> PyTree:
        def term(w: Array) -> Array:
            scales, weights = self.scales.astype(w.dtype), self.weights.astype(w.dtype)
            z = w[..., None] / scales
            parts = jnp.log(weights / scales) - 0.5 * (z**2 + LOG_2PI)
            return jnp.sum(jax.nn.logsumexp(parts, axis=-1), dtype=jnp.float64)

        return jax.tree.map(term, params)

    def broadcast(self, params: PyTree) -> tuple[PyTree, PyTree]:
        prec = 1.0 / jnp.sum(self.weights * self.scales**2)
        return jax.tree.map(jnp.zeros_like, params), jax.tree.map(
            lambda w: jnp.full_like(w, prec), params
        )

    def sample(self, key: Array, params: PyTree) -> PyTree:
        key_scale, key_noise = jax.random.split(key)
        k = tree.size(params)
        which = jax.random.choice(key_scale, len(self.scales), (k,), p=self.weights)
        noise = jax.random.normal(key_noise, (k,), jnp.float64)
        return tree.unraveler(params)(self.scales[which] * noise)
