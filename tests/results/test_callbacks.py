"""Loggers: what a run reports is what the files hold."""

from __future__ import annotations

import csv
import json
import sys
import time

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


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A real report, as an artefact."""
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(60, 2)), rng.normal(size=60)
    estimator = bl.BayesianNNRegressor(hidden=(), method="conjugate", random_state=0)
    estimator.fit(X[:40], y[:40])
    path = tmp_path_factory.mktemp("page") / "report.html"
    bl.report.write(bl.report.from_fit(estimator, X[:40], y[:40], X[40:], y[40:]), path)
    return path


@pytest.mark.filterwarnings("ignore")  # of MLflow's own dependencies
def test_mlflow_has_parameters_metrics_and_the_report(problem, events, page, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # later versions ask for consent
    store = (tmp_path / "runs").as_uri()
    with bl.callbacks.MLflow("prices", run_name="first", tracking_uri=store) as log:
        posterior = fit(problem, log)
        log.finish(posterior, {"test/rmse": 0.25}, artifacts=[page])
    client = mlflow.MlflowClient(store)
    experiment = client.get_experiment_by_name("prices")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_id, run.info.run_name, run.info.status) == (
        log.run_id,
        "first",
        "FINISHED",
    )
    assert run.data.params["algorithm"] == "vogn"
    assert float(run.data.params["learning_rate"]) == 0.02
    assert run.data.params["seed"] == "7"
    found = {
        (*name.rpartition("/")[::2], metric.step): metric.value
        for name in run.data.metrics
        if not name.startswith("final/")
        for metric in client.get_metric_history(run.info.run_id, name)
    }
    assert found == {(phase, name, step): v for (phase, step, name), v in expected(events).items()}
    assert run.data.metrics["final/elbo"] == posterior.elbo
    assert run.data.metrics["final/test/rmse"] == 0.25
    (artifact,) = client.list_artifacts(run.info.run_id)
    copy = client.download_artifacts(run.info.run_id, artifact.path, str(tmp_path))
    with open(copy, "rb") as file:
        assert file.read() == page.read_bytes()
    with bl.callbacks.MLflow("prices", tracking_uri=store):  # the experiment that is there
        pass
    assert len(client.search_runs([experiment.experiment_id])) == 2


@pytest.mark.filterwarnings("ignore")
def test_mlflow_marks_a_run_that_ends_in_an_error(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store = (tmp_path / "runs").as_uri()

    def interrupted():
        with bl.callbacks.MLflow(tracking_uri=store) as log:
            identities.append(log.run_id)
            raise KeyboardInterrupt

    identities = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert mlflow.MlflowClient(store).get_run(identities[0]).info.status == "FAILED"


@pytest.mark.filterwarnings("ignore")  # of W&B's own dependencies
def test_wandb_offline_has_history_configuration_and_the_report(
    problem, events, page, tmp_path, monkeypatch
):
    pytest.importorskip("wandb")
    for name, value in (("WANDB_SILENT", "true"), ("WANDB_DIR", tmp_path), ("HOME", tmp_path)):
        monkeypatch.setenv(name, str(value))
    with bl.callbacks.WandB("prices", mode="offline", dir=str(tmp_path)) as log:
        posterior = fit(problem, log)
        log.finish(posterior, {"test/rmse": 0.25}, artifacts=[page])
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    assert (folder / "files" / "report.html").read_bytes() == page.read_bytes()
    history, config, summary = read_wandb(next(folder.glob("*.wandb")))
    wanted = {}
    for (phase, step, name), value in expected(events).items():
        wanted[(f"{phase}/{name}" if phase else name, step)] = value
    found = {
        (name, int(row["/".join([*name.split("/")[:-1], "step"])])): value
        for row in history
        for name, value in row.items()
        if not name.startswith("_") and name.rpartition("/")[2] != "step"
    }
    assert found == wanted
    assert config["learning_rate"] == 0.02
    assert config["algorithm"] == "vogn"
    assert summary["final/elbo"] == posterior.elbo
    assert summary["final/test/rmse"] == 0.25


def read_wandb(path):
    """History, configuration and summary in the file of an offline run."""
    from wandb.proto import wandb_internal_pb2

    history, config, summary, records = [], {}, {}, []
    deadline = time.monotonic() + 30.0  # its service writes the file, and may be behind
    while not any(record.HasField("exit") for record in records):
        assert time.monotonic() < deadline
        time.sleep(0.05)
        contents = wandb_records(path.read_bytes())
        records = [wandb_internal_pb2.Record.FromString(data) for data in contents]
    for record in records:
        row = {named(item): json.loads(item.value_json) for item in record.history.item}
        history += [row] if row else []
        config |= {named(item): json.loads(item.value_json) for item in record.config.update}
        config |= {named(item): json.loads(item.value_json) for item in record.run.config.update}
        summary |= {named(item): json.loads(item.value_json) for item in record.summary.update}
    return history, config, summary


def named(item):
    return item.key or "/".join(item.nested_key)


def wandb_records(data):
    """W&B has no public reader: a log of LevelDB, in blocks of 32 KiB, after 7 bytes of its own."""
    place, parts = 7, []
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # no room for a header
            place += 32768 - place % 32768
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts.append(data[place + 7 : place + 7 + length])
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ImportError, match="needs mlflow: pip install mlflow"):
        bl.callbacks.MLflow()
