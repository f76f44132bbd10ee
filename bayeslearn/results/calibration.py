"""Calibration on held-out rows: a posterior's predictions with intervals that hold what they say.

`Posterior.calibrate` fits a `Calibrator`, a few numbers, which `Posterior.predict` applies. What
each method changes, and what it promises:

- "conformal": intervals mean +- q std, q being the ceil((n + 1) level)-th smallest |y - mean| / std
  of the n held-out rows; for classes adaptive prediction sets. They hold a new observation with at
  least that probability, whatever the model, on average over rows that are exchangeable with the
  held-out ones, and with at most 1 / (n + 1) more where no scores are equal. With `groups` that is
  so in each group. It is no promise for single rows, nor for rows of another time or place.
  Censored rows are refused by every method: their true number is unknown, and the rows that were
  observed are not exchangeable with new ones.
- "scale", "temperature", "isotonic": a factor of the standard deviation, a divisor of the logits,
  an increasing function of the distribution function (of a class's probability), chosen by held-out
  rows. They have no guarantee in finite samples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bayeslearn.errors import DataWarning, Shown, refuse, warn
from bayeslearn.predictive_base import PredictiveBase, set_scores
from bayeslearn.results.calibrated import (
    ConformalPredictive,
    IsotonicPredictive,
    RescaledPredictive,
)
from bayeslearn.results.calibrated_classes import (
    ConformalSets,
    IsotonicClasses,
    TemperedPredictive,
)
from bayeslearn.results.calibration_maps import (
    ConformalMap,
    FactorMap,
    Map,
    PITMap,
    ProbabilityMap,
    best_factor,
    isotonic_of_classes,
    isotonic_of_pit,
)
from bayeslearn.results.drift import warn_of_drift
from bayeslearn.results.metrics import pit

BY_CLASS = "class"  # of `groups`: the observed class
METHODS = ("conformal", "scale", "temperature", "isotonic")
ALLOWED = {
    "regression": ("conformal", "scale", "isotonic"),
    "classification": ("conformal", "temperature", "isotonic"),
}
MAPS: dict[tuple[str, str], type[Map]] = {
    ("conformal", "regression"): ConformalMap,
    ("conformal", "classification"): ConformalMap,
    ("scale", "regression"): FactorMap,
    ("temperature", "classification"): FactorMap,
    ("isotonic", "regression"): PITMap,
    ("isotonic", "classification"): ProbabilityMap,
}
Fit = Callable[[np.ndarray], Map]  # of the rows of one group


@dataclasses.dataclass(frozen=True)
class Calibrator:
    """What was learned from held-out rows, one map for each group.

    Attributes:
        method: one of `METHODS`.
        kind: "regression" or "classification".
        num_rows: how many held-out rows there were.
        maps: one for each group; a single one without groups.
        groups: their names; None without groups, "class" where they are the classes.
    """

    method: str
    kind: str
    num_rows: int
    maps: tuple[Map, ...]
    groups: tuple[str | int, ...] | str | None = None

    def apply(self, predictive: PredictiveBase, groups: ArrayLike | None = None) -> PredictiveBase:
        """The calibrated predictive; `groups` has the group of each row."""
        group = self._group_of(predictive.num_rows, groups)
        maps: Any = self.maps
        if self.kind == "classification":
            if self.method == "conformal":
                is_by_class = self.groups == BY_CLASS
                return ConformalSets(predictive, maps, group, is_by_class=is_by_class)
            tempered = self.method == "temperature"
            return (TemperedPredictive if tempered else IsotonicClasses)(predictive, maps, group)
        made = {
            "conformal": ConformalPredictive,
            "scale": RescaledPredictive,
            "isotonic": IsotonicPredictive,
        }[self.method]
        return made(predictive, maps, group)

    def _group_of(self, num_rows: int, groups: ArrayLike | None) -> np.ndarray | None:
        """The index of each row's group."""
        if self.groups is None or isinstance(self.groups, str):
            if groups is not None:
                refuse("groups", Shown("groups"), "be left out: calibration was without groups")
            return None
        if groups is None:
            must = "have the group of each row, for calibration was by groups"
            refuse("groups", None, must)
        names = as_groups(groups, num_rows)
        place = {name: index for index, name in enumerate(self.groups)}
        unknown = [name for name in names if name not in place]
        if unknown:
            must = "hold only groups of the calibration rows"
            refuse("groups", Shown(f"the group {unknown[0]!r}"), must)
        return np.array([place[name] for name in names])

    @property
    def note(self) -> str:
        """A sentence about it."""
        number = len(self.maps)
        by = (
            f", {number} {'classes' if self.groups == BY_CLASS else 'groups'}" if number > 1 else ""
        )
        return f"Calibrated ({self.method}) on {self.num_rows} held-out rows{by}."

    def to_dict(self) -> dict[str, Any]:
        """Names, numbers and arrays, for a file."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {"maps": [own._asdict() for own in self.maps]}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Calibrator:
        """The inverse of `to_dict`."""
        made: Any = MAPS[stored["method"], stored["kind"]]
        maps = tuple(made(**fields) for fields in stored["maps"])
        return cls(**stored | {"maps": maps})


def as_groups(groups: ArrayLike, num_rows: int) -> list[str | int]:
    """The group of each row, a whole number or a name."""
    values = np.asarray(groups)
    if values.shape != (num_rows,):
        refuse(
            "groups", Shown(f"shape {values.shape}"), f"have one entry for each of {num_rows} rows"
        )
    names = values.tolist()
    if not all(isinstance(name, str | int) for name in names):
        refuse("groups", Shown(f"dtype {values.dtype}"), "hold whole numbers or names")
    return names


def check_method(method: str, kind: str | None = None, argument: str = "method") -> None:
    """Refuse what is not a method, or not one for this kind of model."""
    allowed = METHODS if kind is None else ALLOWED[kind]
    if method not in allowed:
        where = "" if kind is None else f" for {kind}"
        refuse(argument, method, "be one of " + ", ".join(map(repr, allowed)) + where)


def fit_calibrator(
    predictive: PredictiveBase,
    y: ArrayLike,
    method: str = "conformal",
    *,
    weight: np.ndarray | None = None,
    groups: ArrayLike | str | None = None,
    joint: bool = False,
    seed: int = 0,
) -> Calibrator:
    """Learn from the predictive of held-out rows and what was observed there.

    `seed` is for the random part of prediction sets and of a count's PIT; see
    `Posterior.calibrate` for the other arguments.
    """
    kind = predictive.kind
    check_method(method, kind)
    number = predictive.num_rows
    must = "hold observed numbers alone to calibrate: of a censored row the true one is unknown"
    remedy = (
        "Leaving those rows out would bias the intervals; check predictions with"
        " bl.metrics.pit and log_likelihood, which take censored rows."
    )
    observed = np.asarray(predictive.observed(y, must, remedy))
    weight = np.ones(number) if weight is None else weight
    names: tuple[str | int, ...] | str | None = None
    index = np.zeros(number, int)
    if isinstance(groups, str):
        index, names = _by_class(predictive, observed, method, groups), BY_CLASS
    elif groups is not None:
        given = as_groups(groups, number)
        names = tuple(sorted(set(given), key=lambda name: (str(type(name)), name)))
        index = np.array([names.index(name) for name in given])
    fit = _fits(predictive, observed, method, weight, joint, seed)
    count = len(names) if isinstance(names, tuple) else int(index.max()) + 1
    if names == BY_CLASS:
        count = predictive.probs.shape[1]
    members = [np.flatnonzero((index == group) & (weight > 0)) for group in range(count)]
    if not all(len(rows) for rows in members):
        refuse("data", Shown("rows of weight 0"), "have a row that counts, in every group")
    return Calibrator(method, kind, number, tuple(fit(rows) for rows in members), names)


def _by_class(
    predictive: PredictiveBase, observed: np.ndarray, method: str, groups: str
) -> np.ndarray:
    """The observed class of each row."""
    if groups != BY_CLASS:
        refuse("groups", groups, f'be the group of each row, or "{BY_CLASS}"')
    if predictive.kind != "classification" or method != "conformal":
        refuse("groups", groups, 'be used with method="conformal" of a classification model')
    absent = np.setdiff1d(np.arange(predictive.probs.shape[1]), observed)
    if len(absent):
        must = f"hold all classes in the calibration rows; class {absent[0]} is not there"
        refuse("groups", groups, must)
    return observed


def _fits(
    predictive: PredictiveBase,
    y: np.ndarray,
    method: str,
    weight: np.ndarray,
    joint: bool,
    seed: int,
) -> Fit:
    """The function that learns the map of some of the rows."""
    is_regression = predictive.kind == "regression"
    if joint and not (is_regression and method == "conformal"):
        refuse("joint", joint, 'be used with method="conformal" of a regression model')
    if method == "conformal":
        scores = _scores(predictive, y, joint, seed)
        warn_of_drift(scores.max(axis=1))
        return lambda rows: ConformalMap.of(scores[rows], weight[rows])
    if method == "scale":
        return _fit_scale(predictive, y, weight)
    if method == "temperature":
        return _fit_temperature(predictive, y, weight)
    if not is_regression:
        probs = predictive.probs
        return lambda rows: isotonic_of_classes(probs[rows], y[rows], weight[rows])
    values = pit(predictive, y, seed)
    table = values.reshape(len(values), -1)
    return lambda rows: isotonic_of_pit(table[rows], weight[rows])


def _scores(predictive: PredictiveBase, y: np.ndarray, joint: bool, seed: int) -> np.ndarray:
    """Conformal scores: (rows, columns), or (rows, 1) of classes."""
    if predictive.kind == "classification":
        # Another stream than that of `prediction_set`, whose sets must not depend on these rows.
        uniform = np.random.default_rng([seed, len(y), 1]).uniform(size=len(y))
        return set_scores(predictive.probs, uniform)[np.arange(len(y)), y][:, None]
    scores = (np.abs(y - predictive.mean) / predictive.std).reshape(len(y), -1)
    if joint:
        scores = np.broadcast_to(scores.max(axis=1, keepdims=True), scores.shape).copy()
    return scores


def _fit_scale(predictive: PredictiveBase, y: np.ndarray, weight: np.ndarray) -> Fit:
    """A factor of the standard deviation, by held-out log-likelihood."""
    if predictive.is_discrete or not all(np.isinf(end) for end in predictive.support):
        must = 'be one that keeps observations in their range, such as "conformal" or "isotonic"'
        refuse("method", "scale", must)

    def fit(rows: np.ndarray) -> FactorMap:
        def log_likelihood(factor: float) -> float:
            scaled = RescaledPredictive(predictive, [FactorMap(factor)])
            return float(weight[rows] @ scaled.log_prob(y)[rows])

        return best_factor(log_likelihood)

    return fit


def _fit_temperature(predictive: PredictiveBase, y: np.ndarray, weight: np.ndarray) -> Fit:
    """A divisor of the logits, by held-out log-likelihood."""
    is_correct = predictive.probs.argmax(axis=1) == y

    def fit(rows: np.ndarray) -> FactorMap:
        if np.all(is_correct[rows]):
            # The likelihood grows without bound as the temperature falls to zero.
            warn(
                f"All {len(rows)} calibration rows are classified correctly, so that no temperature"
                " can be estimated: the probabilities are not changed.",
                DataWarning,
            )
            return FactorMap(1.0)

        def log_likelihood(factor: float) -> float:
            changed = TemperedPredictive(predictive, [FactorMap(factor)])
            return float(weight[rows] @ changed.log_prob(y)[rows])

        return best_factor(log_likelihood)

    return fit
