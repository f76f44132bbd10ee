"""Progress: a bar on a terminal, lines elsewhere if they are wanted, and nothing otherwise."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time

import pytest

from bayeslearn import progress
from bayeslearn.progress import Progress, Status, phase_label


@pytest.fixture
def fast(monkeypatch):
    """A line every hundredth of a second."""
    monkeypatch.setattr(progress, "HEARTBEAT", 0.01)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def wait_for(capture, text, seconds=5.0):
    """What was written to standard error, once it contains the text."""
    written, end = "", time.monotonic() + seconds
    while text not in written and time.monotonic() < end:
        time.sleep(0.005)
        written += capture.readouterr().err
    assert text in written
    return written


def test_lines_repeat_the_status(fast, capsys):
    with Progress("vogn", 1666, True) as bar:
        wait_for(capsys, "vogn: compiling (0 s)\n")
        bar.update(250, {"elbo": -310.0, "other": 1.0}, name="vogn, warm start")
        text = wait_for(capsys, "vogn, warm start: step 250 of 1666, elbo -310 (0 s)\n")
        assert text.count("\n") >= 1
        bar.update(10, {"warmup": 1.0, "acceptance": 0.8}, name="hmc", total=1500)
        wait_for(capsys, "hmc: step 10 of 1500, warm-up acceptance 0.8 (0 s)\n")
        bar.update(12, {}, name="hmc")
        wait_for(capsys, "hmc: step 12 of 1500 (0 s)\n")
    capsys.readouterr()
    time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_work_without_steps(fast, capsys):
    with Progress("computing the report", None, True):
        wait_for(capsys, "computing the report (0 s)\n")


def test_other_units_and_texts(fast, capsys):
    with Progress("compare", 18, True, unit="fit") as bar:
        bar.update(7, text="hmc, warm start, step 250 of 5000")
        wait_for(capsys, "compare: fit 7 of 18, hmc, warm start, step 250 of 5000 (0 s)\n")


@pytest.mark.parametrize("shown", [None, False])
def test_nothing_is_written_where_there_is_no_terminal(fast, capsys, shown):
    with Progress("map", 10, shown) as bar:
        bar.update(5, {"nll": 1.0})
        time.sleep(0.05)
    written = capsys.readouterr()
    assert (written.out, written.err) == ("", "")


@pytest.mark.parametrize("shown", [None, True])
def test_a_bar_on_a_terminal_shows_the_phase(monkeypatch, shown):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with Progress("vogn", 100, shown) as bar:
        time.sleep(0.2)
        bar.update(50, {"elbo": -3.0}, name="vogn, member 3 of 10")
        time.sleep(0.2)
    written = terminal.getvalue()
    assert "vogn: compiling" in written
    assert "vogn, member 3 of 10" in written
    assert "50/100" in written
    assert "elbo -3" in written


def test_lines_of_short_stages_in_a_row_are_not_further_apart(monkeypatch, capsys):
    """A stage's first line is due by the time of the last line, not of its own beginning."""
    monkeypatch.setattr(progress, "HEARTBEAT", 0.3)
    seen = []
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        with Progress("stage", None, True):
            time.sleep(0.1)
        if capsys.readouterr().err:
            seen.append(time.monotonic())
    assert len(seen) >= 4


@pytest.mark.parametrize(
    ("phase", "label"),
    [
        ("main", ""),
        ("main/warm start", "warm start"),
        ("main/start 3.0/warm start", "start 3.0, warm start"),
        ("main/member 0", "member 1"),
        ("main/member 9/warm start", "member 10, warm start"),
    ],
)
def test_phases_have_names(phase, label):
    assert phase_label(phase) == label


def test_members_are_counted():
    assert phase_label("main/member 0", 10) == "member 1 of 10"


SCRIPT = """
import time
from bayeslearn.progress import Progress
with Progress("map", 1, None) as bar:
    for step in range(0, 4001, 40):
        metrics = {"nll": 1234.5678, "validation": -0.123456, "acceptance": 0.8123}
        bar.update(step, metrics, name="ensemble, member 10 of 10", total=4000)
        time.sleep(0.01)
"""


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_narrow_terminal_loses_metrics_and_no_digits(width):
    """On a pseudo-terminal, as a person sees it."""
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": str(width), "LINES": "24"}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stderr=follower, stdout=follower, env=environment
    )
    os.close(follower)
    written = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        written += part
    assert process.wait(60) == 0
    os.close(leader)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.decode())
    lines = [line for line in re.split(r"[\r\n]+", text) if "4000" in line]
    assert lines
    assert "4000/4000" in lines[-1]
    for line in lines:
        assert re.search(r"\d+/4000\b", line)
        assert "ensemble, member 10 of 10" in line
        assert len(line) <= width
        assert ("nll 1235" in line) == (width > 60)
        assert "validation" not in line or "validation -0.1235" in line


def test_a_status_is_one_line():
    assert Status("map", 10, 5).line(61.4) == "map: step 5 of 10 (61 s)"
