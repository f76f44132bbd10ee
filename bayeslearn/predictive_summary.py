"""What a predictive distribution shows in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bayeslearn import markup

if TYPE_CHECKING:
    from bayeslearn.predictive_base import PredictiveBase

DRAWN, LISTED = 60, 5  # rows in the picture, and in the table
NORMAL_90 = 1.645


def predictive_html(predictive: PredictiveBase) -> str:
    """Some rows as a picture, the first ones as a table."""
    title = f"{predictive.num_rows} predictions from {predictive.num_samples} draws"
    if predictive.num_rows == 0:
        return markup.block(title)
    if predictive.kind == "classification":
        return markup.block(title, *_classes(predictive))
    mean, std = _column(predictive.mean), _column(predictive.std)
    shown = np.unique(np.linspace(0, len(mean) - 1, min(len(mean), DRAWN)).round().astype(int))
    shown = shown[np.argsort(mean[shown], kind="stable")]
    picture = markup.band(
        mean[shown], NORMAL_90 * std[shown], "means in ascending order, with 1.64 std"
    )
    parts = [np.sqrt(_column(part)) for part in (predictive.epistemic, predictive.aleatoric)]
    columns = (mean, std, *parts)
    rows = [[i, *(f"{values[i]:.4g}" for values in columns)] for i in range(min(LISTED, len(mean)))]
    head = ("row", "mean", "std", "epistemic std", "aleatoric std")
    return markup.block(title, picture, markup.table(head, rows))


def _classes(predictive: PredictiveBase) -> list[str]:
    probs = predictive.probs
    top = probs.argmax(axis=1)
    rows = [
        [i, top[i], f"{probs[i, top[i]]:.1%}", f"{predictive.epistemic[i]:.3g}"]
        for i in range(min(LISTED, len(probs)))
    ]
    counts = np.bincount(top, minlength=probs.shape[1])[:DRAWN]
    line = "Most probable classes: " + ", ".join(f"{i}: {n}" for i, n in enumerate(counts))
    return [line, markup.table(("row", "class", "probability", "epistemic (nats)"), rows)]


def _column(values: np.ndarray) -> np.ndarray:
    return values if values.ndim == 1 else values.reshape(len(values), -1)[:, 0]
