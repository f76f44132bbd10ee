"""Labels of a classifier: their order, and how much each counts."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from bayeslearn.errors import Shown, refuse
from bayeslearn.tabular.columns import is_null

BALANCED = "balanced"
AUTO, CATEGORICAL, ORDINAL = "auto", "categorical", "ordinal"
LIKELIHOODS = (AUTO, CATEGORICAL, ORDINAL)


def check_class_options(likelihood: str, class_weight: Any) -> None:
    """Refuse settings that make no sense."""
    if likelihood not in LIKELIHOODS:
        names = ", ".join(map(repr, LIKELIHOODS))
        refuse("likelihood", likelihood, f"be one of {names} for classification")
    if class_weight is None or (isinstance(class_weight, str) and class_weight == BALANCED):
        return
    if not isinstance(class_weight, Mapping):
        refuse("class_weight", class_weight, f"be None, {BALANCED!r} or a dict of weights by label")
    numbers: list[Any] = list(class_weight.values())
    if not all(isinstance(w, Real) and 0 <= float(w) < np.inf for w in numbers):
        refuse("class_weight", class_weight, "hold numbers from 0 on")


def check_labels(y: Any) -> None:
    """Refuse a missing label among text or other objects; scikit-learn checks numbers."""
    found = np.asarray(y.to_numpy() if hasattr(y, "to_numpy") else y)
    if found.dtype != object or found.ndim != 1:
        return
    missing = [row for row, label in enumerate(found) if is_null(label)]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        shown = Shown(f"a missing one in row {missing[0]}{more}")
        refuse("y", shown, "have a label in every row", "Drop these rows.")


def ordered_categories(y: Any) -> list[Any] | None:
    """The categories of an ordered pandas or a Polars Enum column, in their order; else None."""
    kind: Any = getattr(y, "dtype", None)
    if getattr(kind, "ordered", False):  # pandas
        return list(kind.categories)
    if type(kind).__name__ == "Enum" and hasattr(kind, "categories"):  # Polars
        return [str(name) for name in kind.categories]
    return None


def order_of(y: np.ndarray, categories: list[Any] | None, classes: Any) -> np.ndarray:
    """The labels there are, in the order of the categories; sorted without them."""
    found = np.unique(y if classes is None else classes)
    if categories is None:
        return found
    present = set(found.tolist())
    kept = [label for label in categories if label in present]
    return np.array(kept, found.dtype) if len(kept) == len(found) else found


def codes_of(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The index of each label among the classes, in whatever order they are."""
    order = np.argsort(classes)
    return order[np.searchsorted(classes[order], y)]


def weighted(class_weight: Any, y: Any, sample_weight: Any) -> Any:
    """The rows' weights, times those of their classes; "balanced": inverse to the frequency."""
    if class_weight is None:
        return sample_weight
    labels, index = np.unique(np.asarray(y), return_inverse=True)
    index = index.reshape(-1)
    rows = np.ones(len(index)) if sample_weight is None else np.asarray(sample_weight, np.float64)
    if class_weight == BALANCED:
        total = np.bincount(index, rows, len(labels))
        factor = np.sum(total) / (np.sum(total > 0) * np.maximum(total, 1e-300))
    else:
        known = labels.tolist()
        if class_weight and not set(class_weight) & set(known):
            must = f"name labels of y, such as {known[0]!r}"
            refuse("class_weight", Shown(f"the labels {list(class_weight)[:3]}"), must)
        factor = np.array([float(class_weight.get(label, 1.0)) for label in known])
    return rows * factor[index]
