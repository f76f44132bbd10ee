"""What the command line writes: a run's folder, and tables of predictions.

    run/model/          the estimator, see `bl.tabular.load`
    run/table.json      the schema of the table, see `bayeslearn.tabular.encoding`
    run/report.json     every number of the page; run/report.html, the page
    run/predictions.csv of a file that was predicted along with the fit

Everything is written to a temporary place and moved when it is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bayeslearn.cli.safe_text import without_formulas
from bayeslearn.errors import Shown, StorageError, refuse
from bayeslearn.storage import sealed
from bayeslearn.tabular.json_values import JSON
from bayeslearn.tabular.schema import Schema

if TYPE_CHECKING:
    import pandas as pd

    from bayeslearn.tabular.base import BayesianNN

MODEL, TABLE, CONTENTS, PAGE, PREDICTIONS = (
    *("model", "table.json", "report.json"),
    *("report.html", "predictions.csv"),
)
CHECKPOINT = ".checkpoint"  # after the run's name, beside it, while it is under way
RUN_FILES = {MODEL, TABLE, CONTENTS, PAGE, PREDICTIONS}
ROWS_AT_ONCE = 8192  # of a prediction: draws times rows are in memory together


def check_folder(out: str, overwrite: bool) -> Path:
    """A folder that can be written; refused before any work."""
    path = Path(os.path.abspath(out))
    check_parent(out, path)
    if os.path.lexists(path):
        found = {entry.name for entry in path.iterdir()} if path.is_dir() else None
        if found is None or path.is_symlink() or (found and not _is_run(found)):
            must = "be a new folder, or a run of bayeslearn without other files in it"
            refuse("out", Shown(f"{out}: it is a file") if path.is_file() else out, must)
        if found and not overwrite:
            refuse("out", Shown(f"{out}: it exists"), "be a new folder", "Or use --overwrite.")
    return Path(out)


def check_parent(out: str, path: Path) -> None:
    """Refuse a place in a folder that does not exist, or that cannot be written."""
    if not path.parent.is_dir():
        refuse("out", out, f"be in a folder that exists; {path.parent} does not")
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent):
            pass
    except OSError as error:
        must = "be in a folder that can be written"
        refuse("out", Shown(f"{out} ({error.strerror or error})"), must)


def _is_run(found: set[str]) -> bool:
    return TABLE in found and found <= RUN_FILES


def check_file(out: str, new: str, overwrite: bool) -> Path:
    """A file that can be written; refused before any work."""
    path = Path(out)
    check_parent(out, path)
    if path.is_dir():
        refuse("out", out, "be a file; it is a folder")
    if path.exists() and Path(new).exists() and path.samefile(new):
        refuse("out", out, "be another file than the one that is read")
    if path.exists() and not overwrite:
        refuse("out", Shown(f"{out}: it exists"), "be a new file", "Or use --overwrite.")
    return path


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary file, moved to `path` if the block succeeds."""
    temporary = path.parent / f".{secrets.token_hex(8)}.{path.name}"
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_table(table: pd.DataFrame, path: Path, name: str, is_raw: bool = False) -> None:
    """CSV, TSV or Parquet, by the ending of the name; text files without formulas unless raw."""
    kind = Path(name.removesuffix(".gz")).suffix.lower()
    if kind == ".parquet":
        table.to_parquet(path, index=False)
    else:
        table = table if is_raw else without_formulas(table)
        table.to_csv(path, index=False, sep="\t" if kind in (".tsv", ".tab") else ",")


def write_run(
    folder: Path,
    estimator: BayesianNN | None,
    schema: Schema,
    contents: dict[str, JSON] | None,
    predictions: pd.DataFrame | None = None,
    is_raw: bool = False,
) -> None:
    """Write a run's folder; without an estimator only its report."""
    from bayeslearn import report
    from bayeslearn.storage import folders

    path = Path(os.path.abspath(folder))
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    os.mkdir(temporary)
    try:
        if estimator is not None:
            estimator.save(temporary / MODEL)
        (temporary / TABLE).write_text(sealed.dumps(schema.to_dict()), encoding="utf-8")
        if contents is not None:
            text = json.dumps(contents, allow_nan=False)
            (temporary / CONTENTS).write_text(text, encoding="utf-8")
            report.write(contents, temporary / PAGE)
        if predictions is not None:
            write_table(predictions, temporary / PREDICTIONS, PREDICTIONS, is_raw)
        folders.swap(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_json(run: str, name: str, must: str, *, needs_checksum: bool = False) -> dict[str, Any]:
    """A JSON file of a run's folder."""
    try:
        return sealed.loads((Path(run) / name).read_bytes(), needs_checksum=needs_checksum)
    except (OSError, StorageError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        refuse("run", Shown(f"{run} ({name}: {reason})"), must)


def _is_of_first_version(run: str) -> bool:
    """Whether version 0.1 wrote the run, by the manifest of its model, which has a checksum."""
    from bayeslearn.storage.folders import written_by

    try:
        return written_by(Path(run) / MODEL).split(".")[:2] == ["0", "1"]
    except StorageError:
        return False


def read_schema(run: str) -> Schema:
    """The schema of the table that a run was fitted to."""
    must = "be a folder that `bayeslearn fit` or `compare` wrote"
    stored = read_json(run, TABLE, must, needs_checksum=not _is_of_first_version(run))
    try:
        return Schema.from_dict(stored)
    except (KeyError, TypeError, AttributeError):
        refuse("run", Shown(f"{run} ({TABLE} does not describe a table)"), must)


def load_model(run: str) -> BayesianNN:
    """The estimator of a run."""
    from bayeslearn.tabular import persistence

    path = Path(run) / MODEL
    if not path.exists():
        refuse("run", Shown(f"{run}, a comparison without a recommendation"), "hold a model")
    return persistence.load(path)


def predict_table(estimator: BayesianNN, x: pd.DataFrame, level: float = 0.9) -> pd.DataFrame:
    """The predictions of a table, as columns."""
    import pandas as pd

    parts = []
    classes: np.ndarray | None = getattr(estimator, "classes_", None)
    for begin in range(0, len(x), ROWS_AT_ONCE):
        predictive = estimator.predictive(x.iloc[begin : begin + ROWS_AT_ONCE])
        epistemic, aleatoric = predictive.epistemic, predictive.aleatoric
        if classes is not None:
            probs = predictive.probs
            columns = {"predicted": classes[probs.argmax(axis=1)]}
            columns |= {f"p_{name}": probs[:, i] for i, name in enumerate(classes)}
            columns |= {"epistemic": epistemic, "aleatoric": aleatoric}
            calibrator = estimator.posterior_.calibrator
            if calibrator is not None and calibrator.method == "conformal":
                chosen = predictive.prediction_set(level, seed=estimator.posterior_.seed + begin)
                columns["set"] = ["|".join(map(str, classes[row])) for row in chosen]
        else:
            lower, upper = predictive.interval(level)
            columns = {
                "mean": predictive.mean,
                "std": predictive.std,
                "epistemic": np.sqrt(epistemic),
                "aleatoric": np.sqrt(aleatoric),
                "lower": lower,
                "upper": upper,
            }
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)
