"""Runs that are killed at a chosen occasion for a checkpoint, and comparisons to the bit."""

from __future__ import annotations

import os
import warnings

import jax
import numpy as np
import pytest

import bayeslearn as bl
from bayeslearn.storage.checkpoints import Checkpointer


class Killed(BaseException):
    """The process ends there, as by a power failure."""


def kill_after(occasions, monkeypatch, phase="main"):
    """The process dies at this phase's `occasions`-th occasion for a checkpoint."""
    original, count = Checkpointer.maybe_save, [0]

    def maybe_save(self, here, *args):
        original(self, here, *args)
        count[0] += here == phase
        if count[0] == occasions:
            raise Killed

    monkeypatch.setattr(Checkpointer, "maybe_save", maybe_save)


def quietly(function, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bl.MixingWarning)
        return function(*args, **options)


def killed_and_resumed(run, monkeypatch, kills, model, algorithm, data, every=10, **options):
    """The result of a whole run, and of one killed at several occasions one after the other."""
    whole = quietly(bl.fit, model, algorithm, data, **options)

    def go_on():
        if run.exists():
            return quietly(bl.resume, run, data)
        checkpoint = bl.Checkpoint(run, every=every)
        return quietly(bl.fit, model, algorithm, data, checkpoint=checkpoint, **options)

    for phase, occasions in kills:
        kill_after(occasions, monkeypatch, phase)
        with pytest.raises(Killed):
            go_on()
        monkeypatch.undo()
    return whole, go_on()


def checkpoint_names(run, kind="checkpoint"):
    return sorted(name for name in os.listdir(run) if name.startswith(kind))


def assert_same(first, second):
    """Bit for bit: q, state, draws, trace, and what is reported."""
    pairs = zip(
        *(jax.tree.leaves((p.family, p.state, p.target.prior)) for p in (first, second)),
        strict=True,
    )
    for a, b in pairs:
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(a, b)
    assert list(first.trace) == list(second.trace)
    for name in first.trace:
        assert first.trace[name].dtype == second.trace[name].dtype
        np.testing.assert_array_equal(first.trace[name], second.trace[name])
    reports = [(p.elbo, p.stopped, p.notes, p.seed) for p in (first, second)]
    assert reports[0] == reports[1]
