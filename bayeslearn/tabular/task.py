"""What a target column is for: regression or classification. Needs NumPy alone."""

from __future__ import annotations

import numpy as np

TASKS = ("regression", "classification")
MAX_CLASSES = 20  # of whole numbers taken for classes


def detect_task(numbers: np.ndarray | None, found: np.ndarray) -> tuple[str, str]:
    """The task, and what the target holds: `numbers`, or None for text; `found` are its values.

    Text, two numbers, or all whole numbers from 0 or 1 on, each at least twice, are classes.
    """
    if numbers is None:
        return "classification", f"{len(found)} different texts"
    if len(found) == 2:
        return "classification", "two different numbers"
    _, counts = np.unique(numbers, return_counts=True)
    if (
        len(found) <= MAX_CLASSES
        and found[0] in (0, 1)
        and np.array_equal(found, found[0] + np.arange(len(found)))
        and np.min(counts) > 1
    ):
        return (
            "classification",
            f"the whole numbers {found[0]:g} to {found[-1]:g}, each more than once, which are taken"
            " for classes and not for ratings or counts",
        )
    return "regression", f"{len(found)} different numbers"
