"""Splits inside a fit: rows held out for early stopping and calibration, folds of `method="auto"`.

Classes are spread evenly, and one is never held out as a whole. Rows of a group stay together. Rows
in order of time are predicted from earlier ones alone. Knows nothing of what a split is for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bayeslearn.data.rows import Rows, merge_rows
from bayeslearn.errors import ArgumentError, Shown, refuse
from bayeslearn.tabular.sklearn_parts import check_sample_weight

NEVER = -1  # the fold of rows that are always learned from
FEW = 5  # rows of a class that are always among the first ones


class Keys(NamedTuple):
    """What keeps rows together, or apart: the group or the time of each."""

    is_time: bool
    values: np.ndarray  # whole numbers

    def take(self, index: np.ndarray | slice) -> Keys:
        """Of some of the rows."""
        return self._replace(values=self.values[index])


class KeyedRows(NamedTuple):
    """Rows, and what keeps them together or apart."""

    rows: Rows
    keys: Keys | None

    def take(self, index: np.ndarray | slice) -> KeyedRows:
        """Some of the rows."""
        keys = None if self.keys is None else self.keys.take(index)
        return KeyedRows(self.rows.take(index), keys)


def keys_of(groups: Any, time_order: Any, num_rows: int) -> Keys | None:
    """Groups or times as whole numbers; `time_order=True`: the rows are in order."""
    if groups is None and (time_order is None or time_order is False):
        return None
    if groups is not None and time_order is not None:
        refuse("time_order", Shown("both"), "be left out where `groups` are given")
    if time_order is True:
        return Keys(True, np.arange(num_rows))
    name, given = ("groups", groups) if groups is not None else ("time_order", time_order)
    values = np.asarray(given)
    if values.shape != (num_rows,):
        refuse(name, Shown(f"shape {values.shape}"), f"have one entry for each of {num_rows} rows")
    try:
        _, codes = np.unique(values, return_inverse=True)
    except TypeError:
        refuse(name, Shown(f"dtype {values.dtype}"), "hold numbers, names or dates")
    return Keys(groups is None, codes.reshape(-1))


def merged(
    X: np.ndarray, y: np.ndarray, sample_weight: Any, seed: int, keys: Keys | None = None
) -> KeyedRows:
    """The rows that count, equal ones merged, in an order drawn from the seed."""
    weight = check_sample_weight(sample_weight, X, dtype=np.float64)
    if not np.all(weight >= 0):
        refuse("sample_weight", Shown("negative numbers"), "hold numbers from 0 on")
    if not np.any(weight > 0):
        raise ArgumentError("`sample_weight` must hold a weight that is not zero.")
    if keys is None:
        return KeyedRows(merge_rows((X, y, weight), seed), None)
    rows = merge_rows(((X, keys.values), y, weight), seed)  # equal rows of one group or time
    return KeyedRows(rows._replace(x=rows.x[0]), keys._replace(values=rows.x[1]))


def hold_out(
    table: KeyedRows, fraction: float, has_classes: bool, argument: str, at_end: bool = False
) -> tuple[KeyedRows, KeyedRows]:
    """The rows to learn from and those held out, about that fraction. Rows are in random order.

    `argument` is named where nothing would be left; `at_end` takes them from the end.
    """
    number = len(table.rows.y)
    wanted = max(1, round(fraction * number))
    if wanted >= number:
        refuse(argument, fraction, f"leave rows to learn from: there are {number} different ones")
    if table.keys is not None:
        is_held = _held_by_keys(table.keys, wanted, at_end)
    elif has_classes:
        is_held = _held_by_class(table.rows.y, fraction)
    else:
        is_held = np.zeros(number, bool)
        is_held[slice(-wanted, None) if at_end else slice(wanted)] = True
    return table.take(np.flatnonzero(~is_held)), table.take(np.flatnonzero(is_held))


def held_to_stop(keys: Keys | None, fraction: float) -> np.ndarray | None:
    """The groups, or the latest rows, whose log-likelihood decides when members stop training.

    None: any rows, where they have no keys or all have the same.
    """
    if keys is None or not fraction or np.all(keys.values == keys.values[0]):
        return None
    return _held_by_keys(keys, max(1, round(fraction * len(keys.values))), at_end=False)


def _held_by_keys(keys: Keys, wanted: int, at_end: bool) -> np.ndarray:
    """The latest rows, or whole groups."""
    values = keys.values
    found = np.unique(values)
    if len(found) < 2:
        name, what = ("time_order", "time") if keys.is_time else ("groups", "group")
        refuse(name, Shown(f"1 {what}"), f"hold at least two {what}s where rows are held out")
    if keys.is_time:
        first = max(np.sort(values)[-wanted], found[1])
        return values >= first
    order = values[::-1] if at_end else values
    groups = order[np.sort(np.unique(order, return_index=True)[1])]
    sizes = np.array([np.sum(values == group) for group in groups])
    count = min(int(np.searchsorted(np.cumsum(sizes), wanted)) + 1, len(groups) - 1)
    return np.isin(values, groups[:count])


def _held_by_class(labels: np.ndarray, fraction: float) -> np.ndarray:
    """The same fraction of every class, as nearly as can be; a row of each is left."""
    number = len(labels)
    order = np.argsort(labels, kind="stable")
    steps = np.floor(np.arange(number + 1) * fraction + 0.5)
    is_held = np.zeros(number, bool)
    is_held[order] = np.diff(steps) > 0
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        if np.all(is_held[own]):
            is_held[own[0]] = False
    if not np.any(is_held):  # tiny tables
        values, counts = np.unique(labels, return_counts=True)
        is_held[np.flatnonzero(labels == values[np.argmax(counts)])[0]] = True
    return is_held


def fold_of(y: np.ndarray, most: int, has_classes: bool, keys: Keys | None) -> np.ndarray:
    """The fold of each row, or `NEVER`. Rows are in random order already.

    As many folds as rows, groups or times allow, at most `most`, none of them empty; where not even
    two parts can be made, no row has a fold. In order of time fold 0 is the latest block, and the
    earliest is in no fold.
    """
    if keys is not None:
        return (_blocks_of_time if keys.is_time else _folds_of_groups)(keys.values, most)
    fold = np.full(len(y), NEVER)
    own = np.arange(len(y))
    if has_classes:
        labels, counts = np.unique(y, return_counts=True)
        own = np.flatnonzero(np.isin(y, labels[counts > 1]))
        own = own[np.argsort(y[own], kind="stable")]
    number = min(most, len(own))
    if number > 1:
        fold[own] = np.arange(len(own)) % number
    return fold


def _blocks_of_time(times: np.ndarray, most: int) -> np.ndarray:
    """Blocks of whole times with about as many rows each, numbered from the latest."""
    found, counts = np.unique(times, return_counts=True)
    number = min(most + 1, len(found))
    step = np.arange(1, number)
    ends = np.cumsum(counts)
    first = np.searchsorted(ends - 0.5 * counts, len(times) * step / number)
    # At least one time in each block.
    first = np.maximum.accumulate(np.maximum(first, step) - step) + step
    first = np.minimum(first, len(found) - number + step)
    block = np.searchsorted(found[first], times, side="right")
    return np.where(block == 0, NEVER, number - 1 - block)


def _folds_of_groups(groups: np.ndarray, most: int) -> np.ndarray:
    """Each group in the fold that has the fewest rows so far, the largest groups first."""
    found, counts = np.unique(groups, return_counts=True)
    number = min(most, len(found))
    if number < 2:
        return np.full(len(groups), NEVER)
    sizes = np.zeros(number)
    fold_of_group = np.empty(len(found), int)
    for place in np.argsort(-counts, kind="stable"):
        fold_of_group[place] = np.argmin(sizes)
        sizes[fold_of_group[place]] += counts[place]
    return fold_of_group[np.searchsorted(found, groups)]


def first_rows(y: np.ndarray, most: int, has_classes: bool) -> np.ndarray:
    """The first rows, at most so many: of every class its share, and a few of a rare one."""
    number = len(y)
    if number <= most or not has_classes:
        return np.arange(min(number, most))
    _, label, counts = np.unique(y, return_inverse=True, return_counts=True)
    order = np.argsort(label, kind="stable")
    rank = np.empty(number)
    rank[order] = np.arange(number) - np.repeat(np.cumsum(counts) - counts, counts)
    late = np.where(rank < FEW, rank - FEW, (rank + 0.5) / counts[label])
    return np.sort(np.argsort(late, kind="stable")[:most])


def left_out(fold: np.ndarray, k: int, keys: Keys | None) -> np.ndarray:
    """The rows that are not learned from when fold k is predicted: its own, and later ones."""
    if keys is not None and keys.is_time:
        return (fold >= 0) & (fold <= k)
    return fold == k
