"""A process that was forked after JAX had started cannot use it: XLA's threads are not copied, and
the first computation waits for them for ever."""

from __future__ import annotations

import os
from pathlib import Path

from bayeslearn.errors import BayesLearnError

_has_run = False  # whether this process has run something compiled
_is_broken = False  # whether it was forked from one that had


class ForkError(BayesLearnError, RuntimeError):
    """A computation was asked for in a process forked after JAX had started."""


def enter() -> None:
    """Refuse a process in which JAX would hang; call it before anything is computed."""
    global _has_run
    if _is_broken:
        raise ForkError(
            "This process was forked after JAX had started, so that any computation would hang:"
            ' start processes with multiprocessing.get_context("spawn") or with joblib\'s "loky".'
        )
    _has_run = True


def watch() -> None:
    """Note every fork of this process; called once, when the library is imported."""
    if hasattr(os, "register_at_fork"):  # not on every system
        os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def _before_fork() -> None:
    global _has_run
    _has_run = _has_run or _has_xla_threads()


def _after_fork() -> None:
    global _is_broken
    _is_broken = _is_broken or _has_run


def _has_xla_threads() -> bool:
    """Whether XLA has started threads here, by their names; False where they cannot be read."""
    try:
        tasks = list(Path("/proc/self/task").iterdir())
        names = [(task / "comm").read_text().lower() for task in tasks]
    except OSError:
        return False
    return any("xla" in name or "pjrt" in name for name in names)
