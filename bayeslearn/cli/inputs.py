"""Tables and estimators of the commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import bayeslearn as bl
from bayeslearn.cli import flags
from bayeslearn.cli.output import Speaker
from bayeslearn.errors import refuse
from bayeslearn.tabular import encoding, files

if TYPE_CHECKING:
    import pandas as pd


def _read_table(
    speaker: Speaker, data: str, target: str, encoding: str, options: dict[str, Any]
) -> tuple[files.Raw, encoding.Learned]:
    raw = files.read(data, encoding=encoding)
    names = ("task", "drop", "categorical", "impute")
    learned = encoding.learn(
        raw,
        target,
        **{name: options[name] for name in names if name in options},
        encoding=options.get("categories", "one-hot"),
    )
    for note in learned.notes:
        speaker.note(note)
    return raw, learned


class New(NamedTuple):
    raw: files.Raw
    x: pd.DataFrame


def _read_new(
    speaker: Speaker, table: encoding.Table, path: str, argument: str, encoding: str
) -> New:
    raw = files.read(path, argument=argument, encoding=encoding)
    x = table.encode(raw, speaker.note)
    if not len(x):
        raw.bad("it has no rows below its header", "have rows to predict")
    for note in raw.notes:
        speaker.note(note)
    known = {column.name for column in table.columns}
    extra = [name for name in raw.cells.columns if name not in known]
    if extra:
        shown = ", ".join(map(repr, extra[:5])) + (", ..." if len(extra) > 5 else "")
        speaker.note(f"Not used: the column{'s' if len(extra) > 1 else ''} {shown}.")
    return New(raw, x)


class Rows(NamedTuple):
    train: np.ndarray
    test: np.ndarray


def _split(learned: encoding.Learned, fraction: float, seed: int) -> Rows:
    """Rows to learn from and rows kept back, with the classes in the same shares in both."""
    order = np.random.default_rng(seed).permutation(len(learned.y))
    groups = [order]
    if learned.table.task == "classification":
        labels = learned.y[order]
        groups = [order[labels == label] for label in np.unique(labels)]
    kept = [min(round(fraction * len(group)), len(group) - 1) for group in groups]
    if fraction and not any(kept):
        kept[int(np.argmax([len(group) for group in groups]))] = 1
    test = [group[:number] for group, number in zip(groups, kept, strict=True)]
    train = [group[number:] for group, number in zip(groups, kept, strict=True)]
    return Rows(np.sort(np.concatenate(train)), np.sort(np.concatenate(test)))


def _network_options(task: str, options: dict[str, Any]) -> dict[str, Any]:
    """Those of the estimator that were given."""
    names = {
        "hidden": "hidden",
        "activation": "activation",
        "prior_scale": "prior_scale",
        "observation_noise": "noise",
        "num_steps": "num_steps",
        "batch_size": "batch_size",
        "validation_fraction": "validation_fraction",
    }
    given = {own: options[name] for name, own in names.items() if options.get(name) is not None}
    if task == "classification" and "noise" in given:
        refuse("observation-noise", given["noise"], "be left out: classes have none")
    return given


def _estimator(
    speaker: Speaker, task: str, method: str, settings: dict[str, Any], options: dict[str, Any]
) -> Any:
    cls = flags.class_of(method)
    given = _network_options(task, options)
    if cls.capabilities.needs_linear_model and "hidden" not in given:
        given["hidden"] = ()
        speaker.note(f"{method} fits a linear model: there is no hidden layer.")
    kind = bl.BayesianNNRegressor if task == "regression" else bl.BayesianNNClassifier
    return kind(method=cls(**settings) if settings else method, **given)
