"""Gaussian noise that is correlated between the columns of y."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, multigammaln
from jax.typing import ArrayLike

from bayeslearn import tree
from bayeslearn.data.rows import total_weight
from bayeslearn.errors import Shown, check_positive, refuse
from bayeslearn.models.likelihoods.base import ColumnLikelihood, Params
from bayeslearn.models.likelihoods.checks import as_table, check_spd, column_scale
from bayeslearn.models.likelihoods.inverse_wishart import (
    expected_log_det,
    inverse_wishart_kl,
    sample_inverse_wishart,
)
from bayeslearn.models.likelihoods.student_tails import interpolated_cdf, student_tails
from bayeslearn.models.protocols import Reparametrised
from bayeslearn.numerics import LOG_2PI, log_abs_det
from bayeslearn.precision import double_precision
from bayeslearn.tree import Array, PyTree

if TYPE_CHECKING:
    from bayeslearn.models.protocols import Approximation
    from bayeslearn.models.target import Target

REFRESH_CELLS = 2**16  # draws x rows that a refresh evaluates; at least 4 and at most 256 draws


class MultivariateGaussian(ColumnLikelihood):
    r"""Gaussian noise that is correlated between the columns of y.

    `cov` is its covariance if it is known: (columns, columns), positive definite. Default: it is
    inferred under the inverse-Wishart prior IW(`degrees`, `scale`), independent of the weights,
    which is the survey's product prior. Defaults: `degrees` = columns + 2, the smallest whole
    number for which the prior has a mean, and `scale`, (columns, columns), the diagonal matrix of
    the variances of y. The prior mean of the covariance is then the variance of y, worth about
    one row.

    With R the residuals of N rows, the covariance given the weights is IW(degrees + N,
    scale + R^T R). **Samplers** use the density with the covariance integrated out,

        log p(Y | w) = const - (degrees + N) / 2 log|scale + R^T R|,

    and draw it for each saved draw: `params["likelihood"]["cov"]`. **All other methods** maintain
    q(cov) = IW(degrees + N, scale + E_q[R^T R]), by its exact coordinate update between rounds of
    steps (E_q by draws, on all rows), and maximise E_q(cov)[log p(y | w, cov)] in the steps. The
    lower bound includes KL(q(cov) || prior). With weights and covariance independent, q(cov) is
    the narrower and E[cov] the smaller, the fewer rows there are per weight. `mean_noise()` is
    E[cov].

    Aleatoric uncertainty is the diagonal of the covariance, averaged over draws or q. A prediction
    under q(cov) is the multivariate t that integrates it out.
    """

    cov: ArrayLike | None = None
    degrees: float | Array | None = None
    scale: ArrayLike | None = None
    columns: int | None = eqx.field(default=None, static=True, kw_only=True)
    is_vector: bool = eqx.field(default=False, static=True, kw_only=True)
    root: Array | None = eqx.field(default=None, kw_only=True)  # Cholesky: of cov, or of q's scale
    dof: Array | None = eqx.field(default=None, kw_only=True)  # of q
    tails: Array | None = eqx.field(default=None, kw_only=True)  # of the t that predicts
    role: str = eqx.field(default="train", static=True, kw_only=True)

    def __check_init__(self) -> None:
        if self.columns is not None:  # bound, and checked before
            return
        if self.cov is not None:
            check_spd("cov", self.cov, "Leave it out to have it learned.")
            for name in ("degrees", "scale"):
                if getattr(self, name) is not None:
                    must = "be left out where `cov` is known"
                    refuse(name, getattr(self, name), must)
        if self.degrees is not None:
            check_positive("degrees", self.degrees, array=True)
            if np.ndim(self.degrees):
                refuse("degrees", self.degrees, "be one number")
        if self.scale is not None:
            check_spd("scale", self.scale)

    def bind(
        self, y: np.ndarray, weight: np.ndarray | None = None
    ) -> tuple[MultivariateGaussian, np.ndarray]:
        """The likelihood with its prior (and first q) of the covariance, and y checked."""
        table, d = as_table(y)
        for name in ("cov", "scale"):
            value = getattr(self, name)
            if value is not None and np.shape(value) != (d, d):
                refuse(name, Shown(f"shape {np.shape(value)}"), f"be ({d}, {d}) for this y")
        is_vector = np.ndim(y) == 1
        if self.cov is not None:
            cov = jnp.asarray(self.cov, jnp.float64)
            root = jnp.linalg.cholesky(cov)
            return MultivariateGaussian(cov, columns=d, is_vector=is_vector, root=root), table
        degrees = d + 2.0 if self.degrees is None else float(self.degrees)
        num_data = total_weight(table, weight)
        least = max(d - 1, d + 1 - num_data)  # for a proper prior, and for a mean after the data
        if degrees <= least:
            refuse("degrees", self.degrees, f"be greater than {least:g} for {d} column(s) of y")
        scale = np.diag(column_scale(table, weight) ** 2) if self.scale is None else self.scale
        scale = np.asarray(scale, np.float64)
        centred = np.asarray(table, np.float64) - np.average(table, axis=0, weights=weight)
        weighted = centred if weight is None else centred * weight[:, None]
        # The first q has the residuals of a constant prediction.
        bound = MultivariateGaussian(
            degrees=jnp.asarray(degrees, jnp.float64),
            scale=jnp.asarray(scale, jnp.float64),
            columns=d,
            is_vector=is_vector,
            root=jnp.linalg.cholesky(jnp.asarray(scale + weighted.T @ centred, jnp.float64)),
            dof=jnp.asarray(degrees + num_data, jnp.float64),
        )
        return bound, table

    # The noise of one observation

    def _noise(self, params: Params) -> _Noise:
        """The noise: drawn, known, or under q."""
        if "cov" in params:
            return _Noise(jnp.linalg.cholesky(params["cov"]))
        assert self.root is not None
        if self.dof is None:
            return _Noise(self.root)
        if self.role == "predict":
            dof = self._predictive_dof(self.dof)
            return _Noise(self.root / jnp.sqrt(dof), dof, self.tails)
        return _Noise(self.root / jnp.sqrt(self.dof))  # its precision is E_q[cov^-1]

    def log_prob(self, outputs: Array, y: Array, params: Params) -> Array:
        """log p(y | outputs, cov), or its expectation under q(cov) in training."""
        noise = self._noise(params)
        found = noise.log_prob(y - outputs)
        if "cov" in params or self.dof is None or self.role == "predict":
            return found
        assert self.root is not None
        # E_q[log|cov|] in place of -log|E_q[cov^-1]|
        return found + noise.log_det() - 0.5 * expected_log_det(self.dof, self.root)

    def mean(self, outputs: Array, params: Params) -> Array:
        """The outputs."""
        return outputs

    def variance(self, outputs: Array, params: Params) -> Array:
        """The noise variance of each column."""
        return jnp.diagonal(self._noise(params).cov())

    def covariance(self, outputs: Array, params: Params) -> Array:
        """The noise covariance."""
        return self._noise(params).cov()

    def cdf(self, outputs: Array, y: Array, params: Params) -> Array:
        """Distribution function at y, by column."""
        return self._noise(params).cdf(y - outputs)

    def sample(self, key: Array, outputs: Array, params: Params) -> Array:
        """outputs + noise."""
        return outputs + self._noise(params).sample(key)

    # The unknown covariance

    def _prior(self) -> tuple[Array, Array]:
        """Degrees of freedom and scale of the covariance's prior, which `bind` has set."""
        return cast("Array", self.degrees), cast("Array", self.scale)

    @double_precision
    def mean_noise(self) -> Array:
        """E[cov] under q, or the known one."""
        assert self.root is not None
        cov = self.root @ self.root.T
        return cov if self.dof is None else cov / (self.dof - self.num_outputs - 1.0)

    @property
    def is_marginal(self) -> bool:
        """Whether the covariance is integrated out."""
        return self.role == "marginal"

    @property
    def refreshes(self) -> bool:
        """Whether there is a q(cov) to update."""
        return self.dof is not None and self.role == "train"

    def marginal(self) -> MultivariateGaussian:
        """The likelihood with the unknown covariance integrated out."""
        return self if self.dof is None else dataclasses.replace(self, role="marginal")

    def conditional(self) -> MultivariateGaussian:
        """The likelihood with a q(cov) in place of the integrated covariance."""
        return dataclasses.replace(self, role="train") if self.is_marginal else self

    def as_prior(self, num_data: Array, own: Params) -> MultivariateGaussian:
        """q(cov), or the inverse-Wishart with the mean of a sampler's draws, as the prior."""
        if self.dof is None:
            return self
        assert self.root is not None
        degrees = self._prior()[0] + num_data
        scale = self.root @ self.root.T
        if "cov" in own:
            covs = own["cov"].reshape(-1, self.num_outputs, self.num_outputs)
            scale = (degrees - self.num_outputs - 1.0) * jnp.mean(covs, axis=0)
        root = jnp.linalg.cholesky(scale)
        return dataclasses.replace(
            self, degrees=degrees, scale=scale, root=root, dof=degrees, role="train"
        )

    def to_predict(self) -> MultivariateGaussian:
        """The multivariate t of a new observation under q(cov)."""
        if self.dof is None or self.role == "predict":
            return self
        tails = student_tails(self._predictive_dof(self.dof))
        return dataclasses.replace(self, role="predict", tails=tails)

    def _predictive_dof(self, dof: Array) -> Array:
        return dof - self.num_outputs + 1.0

    def divergence(self) -> Array | float:
        """KL(q(cov) || prior)."""
        if self.dof is None:
            return 0.0
        assert self.root is not None
        return inverse_wishart_kl(self.dof, self.root, *self._prior())

    def refresh(self, target: Target, q: Approximation, key: Array) -> MultivariateGaussian:
        """q(cov) given q: its exact coordinate update, on all rows."""
        assert target.data is not None
        degrees, scale = self._prior()
        num = int(np.clip(REFRESH_CELLS // len(target.data.y), 4, 256))
        if isinstance(q, Reparametrised):  # antithetic pairs, which cancel odd terms
            half = tree.normal_like(key, q.mean, num // 2)
            draws = jax.vmap(q.transform)(jax.tree.map(lambda e: jnp.concatenate([e, -e]), half))
        else:
            draws = q.sample(key, num)
        squares = jax.lax.map(lambda w: self._squares(target, w), draws)
        root = jnp.linalg.cholesky(scale + jnp.mean(squares, axis=0))
        dof = degrees + target.num_data
        return eqx.tree_at(lambda m: (m.root, m.dof), self, (root, dof))

    def log_marginal(self, target: Target, params: PyTree, key: Array | None = None) -> Array:
        """log p(Y | w) of all rows, the covariance integrated out."""
        d, num_data = self.num_outputs, target.num_data
        degrees, scale = self._prior()
        dof = degrees + num_data
        return (
            multigammaln(0.5 * dof, d)
            - multigammaln(0.5 * degrees, d)
            - 0.5 * num_data * d * jnp.log(jnp.pi)
            + 0.5 * degrees * log_abs_det(scale)
            - 0.5 * dof * log_abs_det(scale + self._squares(target, params, key))
        )

    def sample_marginalized(self, target: Target, params: PyTree, key: Array) -> Params:
        """The likelihood's part of a sampler's draw: the covariance, drawn given the weights."""
        degrees, scale = self._prior()
        scale = scale + self._squares(target, params)
        return {"cov": sample_inverse_wishart(key, degrees + target.num_data, scale)}

    def _squares(self, target: Target, params: PyTree, key: Array | None = None) -> Array:
        """R^T R over all rows."""
        data = target.data
        assert data is not None
        residuals = data.y.astype(jnp.float64) - target.outputs(params, data.x, key)
        if data.weight is not None:
            residuals = residuals * jnp.sqrt(data.weight)[:, None]
        return residuals.T @ residuals * target.scale()


class _Noise(eqx.Module):
    """Correlated noise: Gaussian with covariance root root^T, or t with that scale matrix."""

    root: Array
    dof: Array | None = None
    tails: Array | None = None

    def log_det(self) -> Array:
        """log|root|."""
        return jnp.sum(jnp.log(jnp.diagonal(self.root)))

    def log_prob(self, residual: Array) -> Array:
        """Log-density at one residual."""
        d = len(self.root)
        whitener = jax.scipy.linalg.solve_triangular(
            self.root, jnp.eye(d, dtype=self.root.dtype), lower=True
        )
        square = jnp.sum((whitener @ residual) ** 2)
        if self.dof is None:
            return -0.5 * (square + d * LOG_2PI) - self.log_det()
        half = 0.5 * (self.dof + d)
        constant = gammaln(half) - gammaln(0.5 * self.dof) - 0.5 * d * jnp.log(self.dof * jnp.pi)
        return constant - self.log_det() - half * jnp.log1p(square / self.dof)

    def cov(self) -> Array:
        """The covariance matrix."""
        cov = self.root @ self.root.T
        return cov if self.dof is None else cov * self.dof / (self.dof - 2.0)

    def cdf(self, residual: Array) -> Array:
        """Marginal distribution function of each column."""
        z = residual / jnp.sqrt(jnp.sum(self.root**2, axis=1))
        if self.dof is None:
            return jax.scipy.stats.norm.cdf(z)
        assert self.tails is not None
        return interpolated_cdf(z, self.tails)

    def sample(self, key: Array) -> Array:
        """One residual."""
        key_normal, key_chi = jax.random.split(key)
        noise = self.root @ jax.random.normal(key_normal, self.root.shape[:1], self.root.dtype)
        if self.dof is None:
            return noise
        chi = jax.random.chisquare(key_chi, self.dof, dtype=self.root.dtype)
        return noise * jnp.sqrt(self.dof / chi)
