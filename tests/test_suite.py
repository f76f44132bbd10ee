"""The suite itself: few tests are slow, each for a reason, and no file is long."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent
MAX_SLOW, MAX_LINES = 60, 600


def test_few_tests_are_slow_and_each_has_a_reason(slow_tests):
    """Of those that were collected; a run of the whole suite collects all."""
    assert len(slow_tests) <= MAX_SLOW
    assert not [name for name, reason in slow_tests if not reason]


def test_no_file_is_long():
    lines = {path: path.read_text().count("\n") for path in TESTS.rglob("*.py")}
    assert not {path: number for path, number in lines.items() if number > MAX_LINES}
