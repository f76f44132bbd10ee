"""Regression with a Bayesian neural network."""

from __future__ import annotations

from typing import Any

import numpy as np

from bayeslearn.errors import Shown, refuse
from bayeslearn.models.likelihoods.base import Likelihood
from bayeslearn.models.likelihoods.gaussian import Gaussian, HeteroscedasticGaussian
from bayeslearn.tabular.base import (
    _ATTRIBUTES,
    _PARAMETERS,
    Uncertainty,
    _BayesianNN,
    _check_positive,
    _has_spread,
    _Rows,
)
from bayeslearn.tabular.scaling import Scaling
from bayeslearn.tabular.sklearn_parts import RegressorMixin, available_if, validate_data


class BayesianNNRegressor(RegressorMixin, _BayesianNN):
    __doc__ = f"""Regression with a Bayesian neural network, for one or several columns of y.
{_PARAMETERS}
        noise: "learned" (one scale for each column of y), its standard deviation in units of y,
            or "heteroscedastic" (it depends on x).
{_ATTRIBUTES}
        y_scaling_: mean and scale of the columns of y.
    """

    def __init__(
        self,
        hidden: Any = (50,),
        activation: Any = "tanh",
        method: Any = "bayes-by-backprop",
        prior_scale: float = 1.0,
        noise: Any = "learned",
        num_steps: Any = "auto",
        batch_size: Any = "auto",
        validation_fraction: float | None = None,
        num_samples: int = 256,
        random_state: Any = None,
        progress: bool | None = False,
        network: Any = None,
    ):
        super().__init__(
            hidden=hidden,
            activation=activation,
            method=method,
            prior_scale=prior_scale,
            num_steps=num_steps,
            batch_size=batch_size,
            validation_fraction=validation_fraction,
            num_samples=num_samples,
            random_state=random_state,
            progress=progress,
            network=network,
        )
        self.noise = noise

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> BayesianNNRegressor:
        """Learn from rows of X and y; a row of weight 2 counts as two."""
        return self._fit(X, y, sample_weight)

    @available_if(_has_spread)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> BayesianNNRegressor:
        """Learn from more rows, what is known so far being the prior.

        The first call is `fit`; columns stay scaled as they were there.
        """
        return self._partial_fit(X, y, sample_weight)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The predictive mean, and the standard deviation of a new observation if asked for."""
        predictive = self._predictive(X)
        mean = self._from_network(predictive.mean)
        return (mean, self._in_units(predictive.std)) if return_std else mean

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper end of the central interval that holds a new y with that probability."""
        lower, upper = self._predictive(X).interval(level)
        return self._from_network(lower), self._from_network(upper)

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Standard deviations by what causes them; see `Uncertainty`."""
        predictive = self._predictive(X)
        parts = (predictive.epistemic, predictive.aleatoric)
        return Uncertainty(*(self._in_units(np.sqrt(part)) for part in parts))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """New observations: (rows, n_samples), or (rows, columns, n_samples)."""
        drawn = self._from_network(self._sample(X, n_samples, random_state))
        return np.moveaxis(drawn, 0, -1)

    def log_likelihood(self, X: Any, y: Any) -> float:
        """Mean log predictive density of a row of y, in its own units (higher is better)."""
        predictive = self._predictive(X)
        _, y = self._read(X, y, first=False)
        told = predictive.log_prob(self._to_network(y))
        return float(np.mean(told) - np.sum(np.log(self.y_scaling_.scale)))

    def _read(self, X: Any, y: Any, classes: Any = None, first: bool = True) -> Any:
        X, y = validate_data(
            self, X, y, reset=first, dtype=np.float64, multi_output=True, y_numeric=True
        )
        if first:
            self._is_vector = y.ndim == 1
        columns = y.reshape(len(y), -1).astype(np.float64)
        if not first and columns.shape[1] != len(self.y_scaling_.mean):
            refuse("y", Shown(f"shape {y.shape}"), f"have {len(self.y_scaling_.mean)} column(s)")
        return X, columns

    def _bind_y(self, rows: _Rows, classes: Any) -> tuple[Likelihood, np.ndarray]:
        self.y_scaling_ = Scaling.of(rows.y, rows.weight)
        # Of spread one, as y is once it is scaled: it is what the noise's prior is about.
        stand_ins = np.repeat([[-1.0], [1.0]], rows.y.shape[1], axis=1)
        if isinstance(self.noise, str) and self.noise == "learned":
            return Gaussian(), stand_ins
        if isinstance(self.noise, str) and self.noise == "heteroscedastic":
            return HeteroscedasticGaussian(), stand_ins
        _check_positive("noise", self.noise, ', "learned" or "heteroscedastic"')
        return Gaussian(noise_scale=self.noise / self.y_scaling_.scale), stand_ins

    def _to_network(self, y: np.ndarray) -> np.ndarray:
        return self.y_scaling_.apply(y)

    def _from_network(self, y: np.ndarray) -> np.ndarray:
        values = self.y_scaling_.undo(y)
        return values[..., 0] if self._is_vector else values

    def _in_units(self, std: np.ndarray) -> np.ndarray:
        values = std * self.y_scaling_.scale
        return values[..., 0] if self._is_vector else values
