"""A folder with tables and fits, and a stand-in for the report, which has tests of its own."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from command_line import QUICK, fake_report, homes, run

import bayeslearn as bl
from bayeslearn import progress
from bayeslearn.cli import runs
from bayeslearn.tabular import persistence
from bayeslearn.tabular.compare import api as comparing


@pytest.fixture(autouse=True, scope="module")
def stand_in():
    module = fake_report()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "bayeslearn.report", module)
        patch.setattr(bl, "report", module, raising=False)
        yield module


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    """Every command is the first of its process: no line of progress is overdue."""
    monkeypatch.setattr(progress._Heartbeat, "last_line", None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tables, a fitted regression (`run`) and a fitted classification (`kinds`)."""
    place = tmp_path_factory.mktemp("cli")
    frame = homes()
    frame.to_csv(place / "homes.csv", index=False)
    frame.drop(columns="price").head(7).to_csv(place / "new.csv", index=False)
    frame.assign(kind=np.where(frame["area"] > 120, "large", "small")).drop(columns="price").to_csv(
        place / "kinds.csv", index=False
    )
    return place


@pytest.fixture(scope="module")
def fitted(folder):
    result = run(
        *("fit", folder / "homes.csv", "--target", "price", "--out", folder / "run"),
        *("--predict", folder / "new.csv", "--learning-rate=0.02", *QUICK),
    )
    return folder / "run", result


@pytest.fixture(scope="module")
def classified(folder):
    result = run(
        *("fit", folder / "kinds.csv", "--target", "kind", "--out", folder / "kinds"), *QUICK
    )
    return folder / "kinds", result


class FakeComparison:
    task, recommended = "regression", "map"

    def __init__(self, estimator, options):
        self.fitted, self.options = {"map": estimator}, options

    def to_dict(self):
        return {"kind": "comparison", "recommended": self.recommended, "settings": {}}

    def __rich__(self):
        return "the table [of all]"


class Calls(list):
    """Arguments of calls, and the class that answers them."""

    fake = FakeComparison


@pytest.fixture
def compare_calls(fitted, monkeypatch):
    """What `compare` was called with; it answers with the fit there is."""
    calls = Calls()
    estimator = persistence.load(fitted[0] / runs.MODEL)

    def compare(x, y, **options):
        calls.append({"x": x, "y": y, **options})
        return FakeComparison(estimator, options)

    monkeypatch.setattr(comparing, "compare", compare)
    return calls
