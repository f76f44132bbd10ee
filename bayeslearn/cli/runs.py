"""What the command line writes: a run's folder, and tables of predictions.

    run/model/          the estimator, see `bayeslearn.estimators.load`
    run/table.json      what is remembered of the table, see `bayeslearn.tables`
    run/report.json     every number of the page; run/report.html, the page
    run/predictions.csv of a file that was predicted along with the fit

Everything is written beside its place and moved there when it is whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bayeslearn.errors import Shown, refuse
from bayeslearn.tabular import encoding

if TYPE_CHECKING:
    import pandas as pd

MODEL, TABLE, CONTENTS, PAGE, PREDICTIONS = (
    *("model", "table.json", "report.json"),
    *("report.html", "predictions.csv"),
)
CHECKPOINT = ".checkpoint"  # after the run's name, beside it, while it is under way
RUN_FILES = {MODEL, TABLE, CONTENTS, PAGE, PREDICTIONS}
ROWS_AT_ONCE = 8192  # of a prediction: draws times rows are in memory together


def check_place(out: str, overwrite: bool) -> Path:
    """A folder that can be written, before any work."""
    place = Path(os.path.abspath(out))
    if not place.parent.is_dir():
        refuse("out", out, f"be in a folder that exists; {place.parent} does not")
    if os.path.lexists(place):
        found = {entry.name for entry in place.iterdir()} if place.is_dir() else None
        if found is None or place.is_symlink() or (found and not _is_run(found)):
            must = "be a new folder, or one that bayeslearn wrote and nothing was added to"
            refuse("out", out, must)
        if found and not overwrite:
            refuse("out", Shown(f"{out}: it exists"), "be a new folder", "Or say --overwrite.")
    return Path(out)


def _is_run(found: set[str]) -> bool:
    return TABLE in found and found <= RUN_FILES


def check_file(out: str, new: str, overwrite: bool) -> Path:
    place = Path(out)
    if not place.parent.is_dir():
        refuse("out", out, f"be in a folder that exists; {place.parent} does not")
    if place.is_dir():
        refuse("out", out, "be a file; it is a folder")
    if place.exists() and Path(new).exists() and place.samefile(new):
        refuse("out", out, "be another file than the one that is read")
    if place.exists() and not overwrite:
        refuse("out", Shown(f"{out}: it exists"), "be a new file", "Or say --overwrite.")
    return place


@contextlib.contextmanager
def whole(place: Path) -> Iterator[Path]:
    """A file beside its place, moved there if all goes well."""
    waiting = place.parent / f".{secrets.token_hex(8)}.{place.name}"
    try:
        yield waiting
        os.replace(waiting, place)
    finally:
        waiting.unlink(missing_ok=True)


def write_table(made: pd.DataFrame, path: Path, place: Path) -> None:
    """In the format that the name of its place asks for."""
    kind = Path(place.name.removesuffix(".gz")).suffix.lower()
    if kind == ".parquet":
        made.to_parquet(path, index=False)
    else:
        made.to_csv(path, index=False, sep="\t" if kind in (".tsv", ".tab") else ",")


def write(
    place: Path,
    estimator: Any,
    table: encoding.Table,
    contents: dict[str, Any] | None,
    predictions: pd.DataFrame | None,
) -> None:
    from bayeslearn import report
    from bayeslearn.storage import folders

    path = Path(os.path.abspath(place))
    waiting = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    os.mkdir(waiting)
    try:
        estimator.save(waiting / MODEL)
        (waiting / TABLE).write_text(json.dumps(table.to_dict(), indent=1), encoding="utf-8")
        if contents is not None:
            (waiting / CONTENTS).write_text(json.dumps(contents, allow_nan=False), encoding="utf-8")
            report.write(contents, waiting / PAGE)
        if predictions is not None:
            write_table(predictions, waiting / PREDICTIONS, Path(PREDICTIONS))
        folders.swap(waiting, path)
    finally:
        shutil.rmtree(waiting, ignore_errors=True)


def read_json(run: str, name: str, must: str) -> dict[str, Any]:
    try:
        with open(Path(run) / name, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not JSON"
        refuse("run", Shown(f"{run} ({name}: {reason})"), must)


def read_table(run: str) -> encoding.Table:
    must = "be a folder that `bayeslearn fit` or `compare` wrote"
    given = read_json(run, TABLE, must)
    try:
        return encoding.Table.from_dict(given)
    except (KeyError, TypeError, AttributeError):
        refuse("run", Shown(f"{run} ({TABLE} does not describe a table)"), must)


def predicted(estimator: Any, x: pd.DataFrame, level: float = 0.9) -> pd.DataFrame:
    """The predictions of a table, as columns."""
    import pandas as pd

    parts = []
    for begin in range(0, len(x), ROWS_AT_ONCE):
        predictive = estimator._predictive(x.iloc[begin : begin + ROWS_AT_ONCE])
        if hasattr(estimator, "classes_"):
            probs = predictive.probs
            columns = {"predicted": estimator.classes_[probs.argmax(axis=1)]}
            columns |= {f"p_{name}": probs[:, i] for i, name in enumerate(estimator.classes_)}
            columns |= {"epistemic": predictive.epistemic, "aleatoric": predictive.aleatoric}
        else:
            lower, upper = predictive.interval(level)
            columns = {
                "mean": estimator._from_network(predictive.mean),
                "std": estimator._in_units(predictive.std),
                "epistemic": estimator._in_units(np.sqrt(predictive.epistemic)),
                "aleatoric": estimator._in_units(np.sqrt(predictive.aleatoric)),
                "lower": estimator._from_network(lower),
                "upper": estimator._from_network(upper),
            }
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)
