"""Short forms of what `docs/reliability.md` gives the figures of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def results_of(script, out, *options):
    """What a script found, in a process of its own: it is killed, starved and watched there."""
    command = [sys.executable, str(BENCHMARKS / script), "--out", str(out), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(out.read_text())


@pytest.mark.parametrize("name", ["vogn", "metropolis-hastings"])
def test_a_killed_process_is_resumed_to_the_same_bits(name, tmp_path):
    found = results_of("kill.py", tmp_path / "kill.json", "--kills", "2", "--algorithms", name)
    assert found["summary"]["kills"] == 2
    assert found["summary"]["runs_that_differ"] == 0


@pytest.mark.parametrize("kind", ["point", "run of point"])
def test_a_hundred_broken_folders_are_refused_or_sound(kind, tmp_path):
    found = results_of("fuzz.py", tmp_path / "fuzz.json", "--trials", "100", "--kinds", kind)
    assert found["failures"] == []
    assert found["forbidden_events"] == []
    assert found["counts"]["plain, refused"] > 10
    assert found["resident_growth_mb"] < 1000


@pytest.mark.slow(reason="700 fits")
def test_many_fits_neither_grow_nor_compile(tmp_path):
    """A straight line through ten readings; the allocator's own steps are some tenths of a MB."""
    options = ("--fits", "700", "--settle", "200")
    found = results_of("soak.py", tmp_path / "soak.json", *options)
    assert found["compiled_after_settling"] == []
    assert found["mb_per_100_fits"] < 1.0
