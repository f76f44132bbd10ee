"""Loggers: what a run reports is what the files hold."""

from __future__ import annotations

import csv
import sys

import numpy as np
import pytest

import bayeslearn as bl


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 1))
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian(noise_scale=0.3))
    return model, (x, x[:, 0] + 0.3 * rng.normal(size=30))


class Heard(list):
    def __call__(self, event):
        self.append(event)


def fit(problem, callback):
    model, data = problem
    options = bl.FitOptions(eval_every=20)
    return bl.fit(
        *(model, bl.VOGN(learning_rate=0.02), data),
        **{"seed": 7, "num_steps": 90, "callback": callback, "options": options},
    )


@pytest.fixture(scope="module")
def events(problem):
    heard = Heard()
    fit(problem, heard)
    assert {event.phase for event in heard} == {"main", "main/warm start"}
    return heard


def expected(events):
    """(phase, step, name): value"""
    return {
        (event.phase.removeprefix("main").removeprefix("/"), event.step, name): value
        for event in events
        for name, value in event.metrics.items()
    }


def test_csv_has_all_evaluations_settings_and_the_end(problem, events, tmp_path):
    path = tmp_path / "log.csv"
    with bl.callbacks.CSVLogger(path) as log:
        posterior = fit(problem, log)
        log.finish(posterior, {"test/rmse": 0.25})
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    found = {(r["phase"], int(r["step"]), r["name"]): float(r["value"]) for r in rows if r["step"]}
    assert found == expected(events)
    settings = {r["name"]: r["value"] for r in rows if r["phase"] == "parameter"}
    assert settings["algorithm"] == "vogn"
    assert float(settings["learning_rate"]) == 0.02
    assert settings["seed"] == "7"
    assert float(settings["num_data"]) == 30.0
    final = {r["name"]: float(r["value"]) for r in rows if r["phase"] == "final"}
    assert final["elbo"] == posterior.elbo
    assert final["num_steps"] == 90.0
    assert final["test/rmse"] == 0.25


def test_a_file_that_exists_and_files_that_do_not_are_refused(problem, tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("mine")
    with pytest.raises(bl.ArgumentError, match="`path` must be a new file"):
        bl.callbacks.CSVLogger(path)
    posterior = bl.fit(problem[0], "conjugate", problem[1], seed=0)
    with bl.callbacks.CSVLogger(path, overwrite=True) as log:
        with pytest.raises(bl.ArgumentError, match="`posterior` must be what `fit` returned"):
            log.finish("posterior")
        with pytest.raises(bl.ArgumentError, match="`artifacts` must be files that exist"):
            log.finish(posterior, artifacts=[tmp_path / "none.html"])
        with pytest.raises(bl.ArgumentError, match="CSVLogger keeps no files"):
            log.finish(posterior, artifacts=[path])


def test_settings_of_parts_are_named_by_the_part(problem):
    from bayeslearn.results.callbacks import parameters_of

    algorithm = bl.Ensemble(num_members=2, member=bl.MAP(learning_rate=0.05))
    found = parameters_of(bl.fit(problem[0], algorithm, problem[1], seed=0, num_steps=20))
    assert found["num_members"] == 2
    assert found["member"] == "map"
    assert found["member.learning_rate"] == 0.05


@pytest.mark.filterwarnings("ignore")  # of TensorBoard's own dependencies
def test_tensorboard_reads_what_was_logged(problem, events, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    page = tmp_path / "report.html"
    page.write_text("<html></html>")
    with bl.callbacks.TensorBoard(tmp_path / "run") as log:
        log.finish(fit(problem, log), {"test/rmse": 0.25}, artifacts=[page])
    read = EventAccumulator(str(tmp_path / "run"))
    read.Reload()
    found = {
        (*tag.rpartition("/")[::2], scalar.step): scalar.value
        for tag in read.Tags()["scalars"]
        if not tag.startswith("final/")
        for scalar in read.Scalars(tag)
    }
    wanted = {(phase, name, step): v for (phase, step, name), v in expected(events).items()}
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key] == pytest.approx(value, rel=1e-6)  # float32 in its files
    assert read.Scalars("final/test/rmse")[0].value == 0.25
    (settings,) = read.Tensors("parameters/text_summary")
    assert b"|learning_rate|0.02|" in settings.tensor_proto.string_val[0]


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ImportError, match="needs mlflow: pip install mlflow"):
        bl.callbacks.MLflow()
