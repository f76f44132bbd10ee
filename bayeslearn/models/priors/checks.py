"""Checks of a prior's settings, and of whether a method supports it."""

from __future__ import annotations

import jax
import numpy as np

from bayeslearn.errors import Shown, refuse
from bayeslearn.models.priors.base import BoundPrior
from bayeslearn.tree import PyTree


def check_gaussian(prior: BoundPrior | None, what: str) -> None:
    """Refuse a prior that is not Gaussian, for a method that needs one."""
    if prior is not None and not prior.is_gaussian:
        remedy = "Use bl.priors.Normal, or a method for any prior, such as bl.NGVI() or bl.NUTS()."
        refuse("prior", Shown(f"a {prior.title}"), f"be Gaussian for {what}", remedy)


def require_fixed_scale(prior: BoundPrior | None, what: str, remedy: str) -> None:
    """Refuse a prior with a learned scale, for a method that cannot learn it."""
    if prior is not None and prior.refreshes:
        refuse("prior", Shown("one with learn=True"), f"have a fixed scale for {what}", remedy)


def check_numbers(argument: str, value: PyTree, positive: str = "", is_plain: bool = False) -> None:
    """Refuse anything but finite numbers; with `positive`, a remedy, also those not above zero."""
    numbers = jax.tree.leaves(value)
    if not numbers:
        refuse(argument, value, "hold at least one number")
    for number in numbers:
        if not np.issubdtype(np.asarray(number).dtype, np.number):
            must = (
                "be numbers" if is_plain else "be a number, a mapping of name patterns, or a pytree"
            )
            refuse(argument, number, must)
        if not np.all(np.isfinite(number)):
            refuse(argument, number, "be finite")
        if positive and not np.all(np.asarray(number) > 0):
            refuse(argument, number, "be positive", positive)


def check_matrix(argument: str, matrix: PyTree) -> None:
    """Refuse what is not a symmetric positive definite matrix."""
    try:
        matrix = np.asarray(matrix, np.float64)
    except (TypeError, ValueError):
        refuse(argument, matrix, "be a matrix of numbers")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        refuse(argument, Shown(f"shape {matrix.shape}"), "be a square matrix")
    if not np.all(np.isfinite(matrix)):
        refuse(argument, Shown("NaN or infinity"), "be finite")
    if not np.allclose(matrix, matrix.T, rtol=1e-8, atol=1e-10 * np.abs(matrix).max()):
        refuse(argument, Shown("one that is not"), "be symmetric")
    if np.linalg.eigvalsh(matrix)[0] <= 0:
        refuse(argument, Shown("one that is not"), "be a positive definite matrix")


def require_known_scale(prior: BoundPrior | None, name: str) -> None:
    """Refuse unknown scales where a single point is trained: the mode is at zero weights."""
    if prior is not None and prior.to_train() is not prior:
        must = f"be one whose mode is a good network for {name}, as that of unknown scales is not"
        refuse("prior", Shown(f"a {prior.title}"), must, "Use bl.MILE(), or a sampler.")
