"""Callbacks of `fit` that log a run: to CSV, TensorBoard, MLflow or Weights & Biases.

    with bl.callbacks.MLflow(experiment="prices") as log:
        posterior = bl.fit(model, bl.VOGN(), (x, y), seed=0, callback=log)
        log.finish(posterior, {"test/rmse": 0.31}, artifacts=["report.html"])

Every evaluation is logged under the name of its phase ("elbo", "warm start/elbo") at the phase's
own step. `finish` adds the settings of the algorithm, what the run came to, and files such as the
report. A run that ends in an error is closed as failed, where the service knows that.
"""

from __future__ import annotations

import csv
import math
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from bayeslearn.algorithms.base import Algorithm, hyper_parameters
from bayeslearn.errors import Shown, refuse
from bayeslearn.inference.options import FitEvent
from bayeslearn.progress import phase_label
from bayeslearn.results.posterior import Posterior

Value = str | int | float | bool | None


class Logger:
    """Base of the loggers (abstract): a callback, and a context manager that closes the run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # members of an ensemble report from threads
        self._is_closed = False

    # What differs

    def write_metrics(self, phase: str, step: int, metrics: dict[str, float]) -> None:
        """Numbers of one evaluation."""
        raise NotImplementedError

    def write_parameters(self, parameters: dict[str, Value]) -> None:
        """Settings of the run."""
        raise NotImplementedError

    def write_summary(self, metrics: dict[str, float]) -> None:
        """Numbers of the whole run."""
        raise NotImplementedError

    def write_artifact(self, path: Path) -> None:
        """A file."""
        refuse("artifacts", str(path), f"be left out: {type(self).__name__} keeps no files")

    def write_end(self, is_failed: bool) -> None:
        """Close what is open."""

    # What is common

    def __call__(self, event: FitEvent) -> None:
        phase = phase_label(event.phase)
        with self._lock:
            self.write_metrics(phase, event.step, {k: float(v) for k, v in event.metrics.items()})

    def finish(
        self,
        posterior: Posterior,
        metrics: Mapping[str, float] | None = None,
        *,
        artifacts: Iterable[str | os.PathLike[str]] = (),
    ) -> None:
        """Log what the run came to.

        Args:
            posterior: what `fit` returned, or `estimator.posterior_`.
            metrics: further numbers, such as scores of test rows.
            artifacts: files to keep with the run, such as the page of `bl.report`.
        """
        if not isinstance(posterior, Posterior):
            refuse("posterior", Shown(f"a {type(posterior).__name__}"), "be what `fit` returned")
        paths = [Path(path) for path in artifacts]
        for path in paths:
            if not path.is_file():
                refuse("artifacts", str(path), "be files that exist")
        with self._lock:
            self.write_parameters(parameters_of(posterior))
            self.write_summary(summary_of(posterior) | dict(metrics or {}))
            for path in paths:
                self.write_artifact(path)

    def close(self, is_failed: bool = False) -> None:
        """End the run; a second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self.write_end(is_failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self.close(is_failed=kind is not None)


def parameters_of(posterior: Posterior) -> dict[str, Value]:
    """Algorithm, its hyper-parameters (those of its parts by "part.name"), seed and rows."""
    found = _settings(posterior.algorithm, "")
    found |= {"algorithm": posterior.algorithm.name, "seed": posterior.seed}
    if not posterior.target.is_density:
        found["num_data"] = float(posterior.target.num_data)
    return found


def _settings(algorithm: Algorithm, prefix: str) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name in hyper_parameters(algorithm):
        value = getattr(algorithm, name)
        if isinstance(value, Algorithm):
            found[f"{prefix}{name}"] = value.name
            found |= _settings(value, f"{prefix}{name}.")
        else:
            is_plain = value is None or isinstance(value, str | int | float | bool)
            found[f"{prefix}{name}"] = value if is_plain else str(value)
    return found


def summary_of(posterior: Posterior) -> dict[str, float]:
    """Lower bound if there is one, seconds, and steps of all phases."""
    found = {
        "wall_time": posterior.wall_time,
        "compile_time": posterior.compile_time,
        "num_steps": float(sum(phase.num_steps for phase in posterior.phases)),
    }
    return found if posterior.elbo is None else {"elbo": posterior.elbo} | found


def _named(phase: str, metrics: dict[str, float]) -> dict[str, float]:
    return {f"{phase}/{name}" if phase else name: value for name, value in metrics.items()}


class CSVLogger(Logger):
    """Rows "phase, step, name, value" in a CSV file, written as they come.

    Parameters and final numbers are rows of the phases "parameter" and "final", without a step.

    Args:
        path: the file.
        overwrite: replace a file that is there; False: it is refused.

    >>> with bl.callbacks.CSVLogger("log.csv") as log:
    ...     posterior = bl.fit(model, bl.MAP(), (x, y), seed=0, num_steps=200, callback=log)
    ...     log.finish(posterior)
    """

    HEADER = ("phase", "step", "name", "value")

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False):
        super().__init__()
        if not overwrite and os.path.lexists(path):
            refuse("path", Shown(f"{path}: it exists"), "be a new file", "Or use overwrite=True.")
        self._file = open(path, "w", newline="", encoding="utf-8")  # noqa: SIM115
        self._writer = csv.writer(self._file)
        self._writer.writerow(self.HEADER)

    def write_metrics(self, phase: str, step: int, metrics: dict[str, float]) -> None:
        """One row for each number."""
        self._rows(phase, step, metrics)

    def write_parameters(self, parameters: dict[str, Value]) -> None:
        """One row for each setting."""
        self._rows("parameter", "", parameters)

    def write_summary(self, metrics: dict[str, float]) -> None:
        """One row for each number."""
        self._rows("final", "", metrics)

    def write_end(self, is_failed: bool) -> None:
        """Close the file."""
        self._file.close()

    def _rows(self, phase: str, step: int | str, values: Mapping[str, Value]) -> None:
        self._writer.writerows((phase, step, name, value) for name, value in values.items())
        self._file.flush()


class TensorBoard(Logger):
    """Scalars, and texts for parameters and final numbers, in TensorBoard's event files.

    Args:
        folder: the log folder of the run.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        super().__init__()
        _import("tensorboard", "tensorboard")
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(os.fspath(folder))

    def write_metrics(self, phase: str, step: int, metrics: dict[str, float]) -> None:
        """One scalar for each number."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        named = _named(phase, metrics)
        values = [Summary.Value(tag=name, simple_value=value) for name, value in named.items()]
        self._add(Summary(value=values), step)

    def write_parameters(self, parameters: dict[str, Value]) -> None:
        """A table as text."""
        rows = "".join(f"\n|{name}|{value}|" for name, value in parameters.items())
        self._text("parameters", f"|name|value|\n|-|-|{rows}")

    def write_summary(self, metrics: dict[str, float]) -> None:
        """Scalars under "final/"."""
        self.write_metrics("final", 0, metrics)

    def write_artifact(self, path: Path) -> None:
        """The place of the file, as text."""
        self._text("artifacts", str(path.resolve()))

    def write_end(self, is_failed: bool) -> None:
        """Write what is waiting."""
        self._writer.close()

    def _text(self, name: str, text: str) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.util.tensor_util import make_tensor_proto

        value = Summary.Value(
            tag=f"{name}/text_summary",
            metadata=create_summary_metadata(display_name=name, description=""),
            tensor=make_tensor_proto([text.encode()]),
        )
        self._add(Summary(value=[value]), 0)

    def _add(self, summary: Any, step: int) -> None:
        import time

        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))


class MLflow(Logger):
    """A run of MLflow: parameters, metrics, artefacts.

    Args:
        experiment: its name; None: MLflow's default.
        run_name: a name for the run.
        tracking_uri: where to; None: as MLflow is configured. Runs are created in this process and
            need no active run.
    """

    def __init__(
        self,
        experiment: str | None = None,
        *,
        run_name: str | None = None,
        tracking_uri: str | None = None,
    ):
        super().__init__()
        client = self._client = _import("mlflow", "mlflow").MlflowClient(tracking_uri)
        found = client.get_experiment_by_name(experiment or "Default")
        identity = client.create_experiment(experiment) if found is None else found.experiment_id
        self.run_id = client.create_run(identity, run_name=run_name).info.run_id

    def write_metrics(self, phase: str, step: int, metrics: dict[str, float]) -> None:
        """One metric for each number."""
        for name, value in _named(phase, metrics).items():
            self._client.log_metric(self.run_id, name, value, step=step)

    def write_parameters(self, parameters: dict[str, Value]) -> None:
        """Parameters of the run."""
        for name, value in parameters.items():
            self._client.log_param(self.run_id, name, value)

    def write_summary(self, metrics: dict[str, float]) -> None:
        """Metrics under "final/"."""
        self.write_metrics("final", 0, metrics)

    def write_artifact(self, path: Path) -> None:
        """An artefact of the run."""
        self._client.log_artifact(self.run_id, str(path))

    def write_end(self, is_failed: bool) -> None:
        """The run's status."""
        self._client.set_terminated(self.run_id, "FAILED" if is_failed else "FINISHED")


class WandB(Logger):
    """A run of Weights & Biases: configuration, history, summary, files.

    Args:
        project: its name; None: as W&B is configured.
        options: further arguments of `wandb.init`, such as `name` or `mode="offline"`.
    """

    def __init__(self, project: str | None = None, **options: Any):
        super().__init__()
        wandb = _import("wandb", "wandb")
        self._run = wandb.init(project=project, **options)

    def write_metrics(self, phase: str, step: int, metrics: dict[str, float]) -> None:
        """A row of the history; the phase's step is a number in it."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._run.log(_named(phase, finite | {"step": float(step)}))

    def write_parameters(self, parameters: dict[str, Value]) -> None:
        """The configuration."""
        self._run.config.update(parameters)

    def write_summary(self, metrics: dict[str, float]) -> None:
        """The summary, under "final/"."""
        self._run.summary.update(_named("final", metrics))

    def write_artifact(self, path: Path) -> None:
        """A file of the run."""
        self._run.save(str(path), base_path=str(path.parent), policy="now")

    def write_end(self, is_failed: bool) -> None:
        """End the run."""
        self._run.finish(exit_code=int(is_failed))


def _import(module: str, package: str) -> ModuleType:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"This logger needs {package}: pip install {package}.") from error


__all__ = ["CSVLogger", "Logger", "MLflow", "TensorBoard", "WandB"]
