"""What the regressor and the classifier share."""

from __future__ import annotations

import dataclasses
import numbers
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn.algorithms import MAP, Algorithm
from bayeslearn.data.batches import FULL_BATCH_ROWS
from bayeslearn.errors import ArgumentError, Shown, check_whole, refuse
from bayeslearn.inference.api import fit
from bayeslearn.inference.arguments import check_algorithm
from bayeslearn.models.likelihoods.base import Likelihood
from bayeslearn.models.model import Model
from bayeslearn.models.networks import MLP
from bayeslearn.models.priors.specs import Normal
from bayeslearn.models.target import Target
from bayeslearn.precision import double_precision
from bayeslearn.results.posterior import Posterior
from bayeslearn.results.predictive import Predictive
from bayeslearn.storage import posteriors
from bayeslearn.tabular.notebook import _summary
from bayeslearn.tabular.scaling import Scaling
from bayeslearn.tabular.sklearn_parts import (
    BaseEstimator,
    check_is_fitted,
    check_random_state,
    check_sample_weight,
    validate_data,
)

# What `fit` leaves beside the posterior.
LEARNED = (
    "n_features_in_",
    "feature_names_in_",
    "scaling_",
    "y_scaling_",
    "classes_",
    "_is_vector",
)
LEAST_ROWS = 16  # tables are filled up to multiples of this, and of about an eighth of their rows


class Uncertainty(NamedTuple):
    """What more data could tell, and what none could.

    Regression: standard deviations in units of y, whose squares add up to that of `return_std`.
    Classification: mutual information and mean entropy, in nats.
    """

    epistemic: np.ndarray
    aleatoric: np.ndarray


def _has_spread(estimator: Any) -> bool:
    if estimator.method == MAP.name or isinstance(estimator.method, MAP):
        raise AttributeError(
            'partial_fit needs a posterior to go on from, and method="map" leaves a point.'
        )
    return True


class _Rows(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray


class _BayesianNN(BaseEstimator):
    """What regressor and classifier share."""

    posterior_: Posterior
    scaling_: Scaling  # of x

    def __init__(
        self,
        hidden: Any,
        activation: Any,
        method: Any,
        prior_scale: float,
        num_steps: Any,
        batch_size: Any,
        validation_fraction: float | None,
        num_samples: int,
        random_state: Any,
        progress: bool | None,
        network: Any,
    ):
        self.hidden = hidden
        self.activation = activation
        self.method = method
        self.prior_scale = prior_scale
        self.num_steps = num_steps
        self.batch_size = batch_size
        self.validation_fraction = validation_fraction
        self.num_samples = num_samples
        self.random_state = random_state
        self.progress = progress
        self.network = network

    # What differs

    def _read(self, X: Any, y: Any, classes: Any = None, first: bool = True) -> Any:
        """X and y checked, y as (rows, columns) of numbers."""
        raise NotImplementedError

    def _bind_y(self, rows: _Rows, classes: Any) -> tuple[Likelihood, np.ndarray]:
        """The likelihood, and two stand-ins for y as the network sees it; learns y's scaling."""
        raise NotImplementedError

    def _to_network(self, y: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    # Fitting

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        classes: Any = None,
        callback: Any = None,
        **fit_options: Any,
    ) -> Any:
        method = self._check_parameters()
        X, y = self._read(X, y, classes)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        rows = self._one_form(X, y, sample_weight, seed)
        self.scaling_ = Scaling.of(rows.x, rows.weight)
        likelihood, stand_ins = self._bind_y(rows, classes)
        network = MLP(self.hidden, self.activation) if self.network is None else self.network
        model = Model(network, likelihood, Normal.fan_in(float(self.prior_scale)))
        rows, held_out = self._split(rows)
        options = self._options(rows)
        target = _bound(model, self._scaled(rows), stand_ins, seed)
        if held_out is not None:
            options["validation"] = self._scaled(held_out)[:2]
        self.posterior_ = fit(
            target, method, seed=seed, callback=callback, **options, **fit_options
        )
        return self

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> Any:
        if not hasattr(self, "posterior_"):
            return self._fit(X, y, sample_weight, classes)
        method = self._check_parameters()
        X, y = self._read(X, y, classes, first=False)
        seed = self.posterior_.seed + 1
        rows, held_out = self._split(self._one_form(X, y, sample_weight, seed))
        options = self._options(rows)
        if held_out is not None:
            options["validation"] = self._scaled(held_out)[:2]
        x, y, weight = self._scaled(rows)
        self.posterior_ = self.posterior_.update(
            (x, y), algorithm=method, seed=seed, weight=weight, **options
        )
        return self

    def _check_parameters(self) -> Algorithm:
        method = check_algorithm(self.method, "method")
        _check_positive("prior_scale", self.prior_scale)
        check_whole("num_samples", self.num_samples, least=1)
        share = self.validation_fraction
        if share is not None and not (isinstance(share, numbers.Real) and 0 < share < 1):
            refuse("validation_fraction", share, "be None or between 0 and 1")
        return method

    def _one_form(self, X: np.ndarray, y: np.ndarray, sample_weight: Any, seed: int) -> _Rows:
        """Rows that count, in an order of their own."""
        weight = check_sample_weight(sample_weight, X, dtype=np.float64)
        if not np.all(weight >= 0):
            refuse("sample_weight", Shown("negative ones"), "hold numbers from 0 on")
        counts = weight > 0
        if not np.any(counts):
            raise ArgumentError("`sample_weight` must hold a weight that is not zero.")
        X, y, weight = X[counts], y[counts], weight[counts]
        if len(X) <= FULL_BATCH_ROWS:
            table, where = np.unique(np.column_stack([X, y]), axis=0, return_inverse=True)
            weight = np.bincount(where.reshape(-1), weight, minlength=len(table))
            X, y = table[:, : X.shape[1]], table[:, X.shape[1] :]
        order = np.random.default_rng(seed).permutation(len(X))
        return _Rows(X[order], y[order], weight[order])

    def _split(self, rows: _Rows) -> tuple[_Rows, _Rows | None]:
        if self.validation_fraction is None:
            return rows, None
        held_out = max(1, round(self.validation_fraction * len(rows.x)))
        if held_out >= len(rows.x):
            must = f"leave rows to learn from: there are {len(rows.x)} different ones"
            refuse("validation_fraction", self.validation_fraction, must)
        return _Rows(*(a[held_out:] for a in rows)), _Rows(*(a[:held_out] for a in rows))

    def _options(self, rows: _Rows) -> dict[str, Any]:
        batch_size = self.batch_size
        # Merging can leave fewer rows than there were.
        if isinstance(batch_size, int | np.integer) and batch_size > len(rows.x):
            batch_size = len(rows.x)
        return {
            "num_steps": self.num_steps,
            "batch_size": batch_size,
            "progress": self.progress,
        }

    def _scaled(self, rows: _Rows) -> _Rows:
        x, y = self.scaling_.apply(rows.x), self._to_network(rows.y)
        is_whole = isinstance(self.batch_size, str) and len(x) <= FULL_BATCH_ROWS
        return _filled(_Rows(x, y, rows.weight)) if is_whole else _Rows(x, y, rows.weight)

    # Predicting

    def _predictive(self, X: Any) -> Predictive:
        check_is_fitted(self, "posterior_")
        return self._predictive_at(validate_data(self, X, reset=False, dtype=np.float64))

    def _predictive_at(self, X: np.ndarray) -> Predictive:
        """At rows of numbers that were checked already."""
        posterior = self.posterior_
        if self.network is None:
            # In double precision, so that a row's prediction does not depend on the rows beside it.
            doubles = ("float64",) * len(posterior.target.dtypes)
            target = dataclasses.replace(posterior.target, dtypes=doubles)
            posterior = dataclasses.replace(posterior, target=target)
        is_exact = hasattr(posterior.family, "predictive")
        number = None if is_exact else int(self.num_samples)
        seed = posterior.seed
        return posterior.predict(self.scaling_.apply(X), num_samples=number, seed=seed)

    @property
    def trace_(self) -> dict[str, np.ndarray]:
        """Numbers of the run by name, `eval_elbo` among them; see `Posterior.trace`."""
        return self.posterior_.trace

    def _sample(self, X: Any, n_samples: int, random_state: Any) -> np.ndarray:
        """(n_samples, rows, ...) as the network sees y."""
        predictive = self._predictive(X)
        check_whole("n_samples", n_samples, least=1)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        return predictive.sample(seed, int(n_samples))

    # Storing and showing

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the fitted estimator to a folder that `bayeslearn.estimators.load` reads.

        Arrays and a description, as `Posterior.save` writes them: no pickle, no training rows. A
        `random_state` that is not a number is not kept.
        """
        check_is_fitted(self, "posterior_")
        parameters = self.get_params(deep=False) | {"network": None}
        if not isinstance(self.random_state, numbers.Integral | None):
            parameters["random_state"] = None
        learned = {name: getattr(self, name) for name in LEARNED if hasattr(self, name)}
        for name, value in learned.items():
            if isinstance(value, Scaling):
                learned[name] = value._asdict()
            elif isinstance(value, np.ndarray) and value.dtype.kind in "OUT":  # names
                learned[name] = [str(value.dtype), value.tolist()]
        owner = {"class": type(self).__name__, "parameters": parameters, "learned": learned}
        posteriors.save(self.posterior_, path, overwrite=overwrite, owner=owner)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "posterior_" in state:
            state["posterior_"] = _packed(state["posterior_"])
        return state

    def _repr_html_inner(self) -> str:
        shown = super()._repr_html_inner()
        return shown + _summary(self.posterior_) if hasattr(self, "posterior_") else shown

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle = super()._repr_mimebundle_(**kwargs)
        if "text/html" in bundle:
            bundle["text/html"] = self._repr_html_inner()
        return bundle


_PARAMETERS = """
    Parameters:
        hidden: sizes of the hidden layers; () is a linear model.
        activation: a name from `jax.nn` ("tanh", "relu", ...) or a function.
        method: how the posterior is found: a name from `bl.ALGORITHMS` or an algorithm.
        prior_scale: standard deviation of the weights before the data, divided by the square root
            of a layer's inputs.
        num_steps, batch_size, progress: see `bl.fit`. Samplers carry their own counts.
        validation_fraction: share of the rows held out, whose log-likelihood decides when to stop.
        num_samples: draws of the weights in a prediction.
        random_state: a whole number, a NumPy `RandomState`, or None for another result each time.
        network: a network in the place of `hidden` and `activation`; see `bl.Model`.
"""
_ATTRIBUTES = """
    Attributes:
        posterior_: the `bl.Posterior`, of the scaled table.
        trace_: its trace.
        scaling_: mean and scale of the columns of x.
"""


@double_precision
def _bound(model: Model, rows: _Rows, stand_ins: np.ndarray, seed: int) -> Target:
    """The model on weighted rows; what it is to know of y in advance it reads off stand-ins."""
    target, start = model.bind((np.zeros((2, rows.x.shape[1])), stand_ins), jax.random.key(seed))
    return dataclasses.replace(
        target.with_data(target.batch((rows.x, target.likelihood.check(rows.y)), rows.weight)),
        num_data=jnp.asarray(np.sum(rows.weight), jnp.float64),
        start=start,
    )


def _filled(rows: _Rows) -> _Rows:
    """Rows of weight 0 at the end, up to one of few sizes."""
    number = len(rows.x)
    step = max(LEAST_ROWS, 2 ** (max(number - 1, 1).bit_length() - 3))
    missing = -number % step
    x, y = (np.concatenate([a, np.repeat(a[-1:], missing, axis=0)]) for a in rows[:2])
    return _Rows(x, y, np.concatenate([rows.weight, np.zeros(missing)]))


def _check_positive(name: str, value: Any, other: str = "") -> None:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not np.isfinite(value) or value <= 0:
        refuse(name, value, f"be a positive number{other}")


def _packed(posterior: Posterior) -> Posterior:
    """Arrays of NumPy and settings, without the training rows and the last state of the run."""
    target = posterior.target.with_data(jax.tree.map(lambda leaf: leaf[:0], posterior.target.data))
    parts = {
        name: jax.tree.map(lambda a: np.asarray(a) if isinstance(a, jax.Array) else a, part)
        for name, part in (("target", target), ("family", posterior.family))
    }
    return dataclasses.replace(posterior, state=None, **parts)
