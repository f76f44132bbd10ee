"""Regression with a Bayesian neural network."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import numpy as np

from bayeslearn.algorithms.base import Algorithm
from bayeslearn.data.rows import Rows
from bayeslearn.data.scaling import Scaling
from bayeslearn.errors import Shown, check_positive, refuse
from bayeslearn.inference.arguments import is_auto
from bayeslearn.inference.options import Checkpoint, Devices
from bayeslearn.models.likelihoods.base import Likelihood
from bayeslearn.models.likelihoods.gaussian import Gaussian, HeteroscedasticGaussian
from bayeslearn.models.likelihoods.log_normal import HeteroscedasticLogNormal
from bayeslearn.models.likelihoods.student import StudentT
from bayeslearn.tabular import target_types
from bayeslearn.tabular.base import BayesianNN, Callback
from bayeslearn.tabular.candidates import LOG_NORMAL, NOISES, Noise
from bayeslearn.tabular.distributions import RegressionMethods, Uncertainty, can_update
from bayeslearn.tabular.frame_inputs import validated
from bayeslearn.tabular.sklearn_parts import RegressorMixin, available_if
from bayeslearn.tabular.texts import ATTRIBUTES, PARAMETERS

MIN_NOISE = 1e-3  # relative to the standard deviation of y, where it depends on x
LIKELIHOODS: dict[str, Likelihood] = {
    "learned": Gaussian(),
    "heteroscedastic": HeteroscedasticGaussian(MIN_NOISE),
    "student-t": StudentT(MIN_NOISE),
}


class BayesianNNRegressor(RegressorMixin, RegressionMethods, BayesianNN):
    __doc__ = f"""Regression with a Bayesian neural network, for one or several columns of y.

    >>> regressor = bl.BayesianNNRegressor(hidden=(), method="conjugate", random_state=0)
    >>> mean, std = regressor.fit(x, y).predict(x_held, return_std=True)
    >>> lower, upper = regressor.predict_interval(x_held, level=0.9)
    >>> regressor.score(x_held, y_held) > 0.9
    True
{PARAMETERS.format(prior_scale=1.0, scaling='"scale"')}
        noise: "learned" (one scale for each column of y), its standard deviation in units of y,
            "heteroscedastic" (it depends on x), "student-t" (it depends on x, with heavy tails) or
            "log-normal" (it depends on x and is proportional to y, which is positive). "auto":
            chosen with method="auto", "student-t" for MILE and ensembles, else "learned".
        likelihood: "gaussian" (with the noise above), "log-normal", "gamma", "beta", "poisson",
            "negative-binomial" or "zero-inflated-poisson". "auto": by what y holds, counts,
            proportions, positive and skewed or real numbers; a note says which.
{ATTRIBUTES}
        y_scaling_: mean and scale of the columns of y.
        likelihood_: the name of the likelihood that was used.
    """

    task: ClassVar[str] = "regression"
    default_prior_scale: ClassVar[float] = 1.0

    def __init__(
        self,
        hidden: Any = "auto",
        activation: Any = "tanh",
        method: Any = "auto",
        prior_scale: float | str = "auto",
        noise: Any = "auto",
        num_steps: int | str = "auto",
        batch_size: int | str = "auto",
        validation_fraction: float | None = None,
        num_samples: int = 256,
        starts: Any = 1,
        random_state: Any = None,
        progress: bool | None = False,
        network: Any = None,
        budget: float | str | None = None,
        calibration: str | None = None,
        calibration_fraction: float = 0.2,
        likelihood: str = "gaussian",
        categories: str = "one-hot",
        missing: str | None = None,
    ):
        self.hidden = hidden
        self.activation = activation
        self.method = method
        self.prior_scale = prior_scale
        self.noise = noise
        self.num_steps = num_steps
        self.batch_size = batch_size
        self.validation_fraction = validation_fraction
        self.num_samples = num_samples
        self.starts = starts
        self.random_state = random_state
        self.progress = progress
        self.network = network
        self.budget = budget
        self.calibration = calibration
        self.calibration_fraction = calibration_fraction
        self.likelihood = likelihood
        self.categories = categories
        self.missing = missing

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        time_order: Any = None,
        callback: Callback | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        devices: str | Devices | None = None,
    ) -> BayesianNNRegressor:
        """Learn from rows of X and y; a row of weight 2 counts as two.

        `callback`, `checkpoint` and `devices` are those of `bl.fit`. Where rows are held out inside
        the fit, rows with the same entry of `groups` stay together; with `time_order`, the time of
        each row, or True for rows in order, the latest are held out.
        """
        return self._fit(
            X,
            y,
            sample_weight,
            groups=groups,
            time_order=time_order,
            callback=callback,
            checkpoint=checkpoint,
            devices=devices,
        )

    @available_if(can_update)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> BayesianNNRegressor:
        """Learn from more rows, with the posterior so far as the prior.

        The first call is `fit`; columns stay scaled as they were there.
        """
        return self._partial_fit(X, y, sample_weight)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The predictive mean; with `return_std` also the standard deviation of a new y."""
        predictive = self.predictive(X)
        return (predictive.mean, predictive.std) if return_std else predictive.mean

    def predict_interval(
        self, X: Any, level: float = 0.9, groups: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper end of the central interval that holds a new y with that probability.

        `groups` has the group of each row, where `calibrate` was by groups.
        """
        return self.predictive(X, groups).interval(level)

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Epistemic and aleatoric standard deviations, in units of y."""
        predictive = self.predictive(X)
        return Uncertainty(np.sqrt(predictive.epistemic), np.sqrt(predictive.aleatoric))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """New observations: (rows, n_samples), or (rows, columns, n_samples)."""
        return np.moveaxis(self._sample(X, n_samples, random_state), 0, -1)

    def log_likelihood(self, X: Any, y: Any) -> float:
        """Mean log predictive density of a row of y, in its own units (higher is better)."""
        return float(np.mean(self.log_prob(X, y)))

    @property
    def y_scaling_(self) -> Scaling:
        """Mean and scale of the columns of y."""
        scaling = self.posterior_.scaling
        assert scaling is not None
        assert scaling.y is not None
        return scaling.y

    def check_parameters(self) -> Algorithm | None:
        """Refuse settings that make no sense; the algorithm of `method`, None for "auto"."""
        target_types.check_likelihood(self.likelihood, self.noise)
        return super().check_parameters()

    def _read(
        self, X: Any, y: Any, classes: Any = None, first: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        target_types.check_numbers(y)
        X, y = validated(
            self, X, y, reset=first, dtype=np.float64, multi_output=True, y_numeric=True
        )
        if first:
            target_types.warn_of_constant(y)
        if not first and (columns := np.shape(self.y_scaling_.mean)) != y.shape[1:]:
            must = f"have {columns[0]} column(s)" if columns else "be a vector"
            refuse("y", Shown(f"shape {y.shape}"), f"{must}, as in the first fit")
        return X, y.astype(np.float64)

    def _scaling_of_y(self, rows: Rows) -> Scaling:
        self.likelihood_, _ = target_types.choose(self.likelihood, rows.y)
        return target_types.scaling_of(self.likelihood_, rows)

    def _notes(self, y: np.ndarray) -> tuple[str, ...]:
        _, note = target_types.choose(self.likelihood, y)
        return (note,) if note else ()

    def _noises(self, is_chosen_from: bool, y: np.ndarray) -> tuple[Noise, ...]:
        if self.likelihood_ != target_types.GAUSSIAN:
            return (self.likelihood_,)
        if not is_auto(self.noise):
            return (self.noise,)
        if not is_chosen_from:
            return ("learned",)
        return (*NOISES, LOG_NORMAL) if target_types.is_skewed(y) else NOISES

    def _likelihood(self, noise: Noise, scaling: Scaling | None) -> Likelihood:
        assert scaling is not None
        if self.likelihood_ in target_types.LIKELIHOODS:
            return target_types.LIKELIHOODS[self.likelihood_]
        if isinstance(noise, str) and noise in LIKELIHOODS:
            return LIKELIHOODS[noise]
        if noise == LOG_NORMAL:
            return HeteroscedasticLogNormal(MIN_NOISE, scaling.mean / scaling.scale)
        check_positive("noise", noise, alternatives=("auto", *LIKELIHOODS, LOG_NORMAL))
        return Gaussian(noise_scale=noise / scaling.scale)
