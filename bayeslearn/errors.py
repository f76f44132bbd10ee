"""The errors a user can meet, and the one sentence format of refused input."""

from __future__ import annotations

import difflib
import functools
import inspect
import numbers
import os
import reprlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


class BayesLearnError(Exception):
    """Base of every error this library raises on purpose."""


class ArgumentError(BayesLearnError, ValueError):
    """An argument was refused before any work was done."""


class NotAvailableError(ArgumentError, AttributeError):
    """A quantity that this kind of model does not have; `hasattr` sees that it does not."""


class DivergenceError(BayesLearnError, ArithmeticError):
    """A run met non-finite numbers and shorter steps did not help."""


class DataError(BayesLearnError, RuntimeError):
    """A data iterator broke its promise in the middle of a run."""


class DistributedError(BayesLearnError, RuntimeError):
    """Processes could not meet, or one of them was lost."""


class OutOfMemoryError(BayesLearnError, MemoryError):
    """An allocation failed in the middle of a run."""


class StoppedError(BayesLearnError, RuntimeError):
    """A callback stopped a sampler in its warm-up, before there was a draw to return."""


class StorageError(BayesLearnError):
    """Something cannot be saved as data, or a folder is not a sound one of ours."""


class DataWarning(UserWarning):
    """Data that can be fitted, but hardly well: their scale, or their number."""


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written, or one was passed over for the one before."""


class Interrupted(SystemExit):
    """SIGTERM came: a checkpoint was written, and the process leaves with status 143.

    It subclasses SystemExit, so that `except Exception` does not swallow it.
    """

    def __init__(self, message: str):
        super().__init__(message)
        self.message, self.code = message, 143

    def __str__(self) -> str:
        return self.message


def refuse(argument: str, value: object, must: str, remedy: str = "") -> NoReturn:
    """Raise: "`argument` must ..., got value. Remedy."."""
    shown = value if isinstance(value, Shown) else _short.repr(value)
    raise ArgumentError(f"`{argument}` must {must}, got {shown}.{' ' + remedy if remedy else ''}")


def did_you_mean(given: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """ "Did you mean laplace?", or nothing where no name is like the one given."""
    known = {name.lower().replace("_", "-"): name for name in names}
    near = difflib.get_close_matches(given.lower().replace("_", "-"), known, 1, cutoff)
    return f"Did you mean {known[near[0]]}?" if near else ""


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the first line outside this package that led here."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def check_whole(argument: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse what is not a whole number (of any integer type) between `least` and `most`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < least:
        refuse(argument, value, f"be a whole number of at least {least}")
    if most is not None and int(value) > most:
        refuse(argument, value, f"be a whole number of at most {most}")


def check_positive(
    argument: str,
    value: object,
    remedy: str = "",
    *,
    alternatives: Sequence[str] = (),
    array: bool = False,
) -> None:
    """Refuse what is not a positive, finite number or, with `array`, an array of such numbers.

    `alternatives` are names that the argument takes as well.
    """
    import numpy as np

    number = np.asarray(value)
    is_number = number.dtype.kind in "iuf" and (array or number.ndim == 0)
    if is_number and np.all(np.isfinite(number)) and np.all(number > 0):
        return
    must = "be positive and finite" if array and is_number else "be a positive number"
    *others, last = must, *(f'"{name}"' for name in alternatives)
    refuse(argument, value, f"{', '.join(others)} or {last}" if others else last, remedy)


def moved_keywords(**places: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Say where a keyword of an earlier version has gone, in place of Python's TypeError."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def inside(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name in places:
                    raise ArgumentError(f"`{name}` has moved: write {places[name]}.")
            return function(*args, **kwargs)

        return inside

    return decorate


class Shown(str):
    """A value already put into words, to be shown as it is."""


_short = reprlib.Repr()
_short.maxother = _short.maxstring = 80
