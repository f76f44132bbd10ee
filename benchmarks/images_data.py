"""Images and scores of `images.py`."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

BINS = 15
KEPT = 0.8  # of the rows, in selective prediction


def load(folder: Path, fashion: Path | None, name: str) -> tuple[np.ndarray, ...]:
    """x, y, x_test, y_test of bytes: DIR/NAME.npz, or files of Debian's dataset-fashion-mnist."""
    if name == "fashion_mnist" and fashion is not None:
        return tuple(
            _idx(next(fashion.rglob(f"{part}-{kind}-ubyte.gz")))
            for part in ("train", "t10k")
            for kind in ("images-idx3", "labels-idx1")
        )
    found = np.load(folder / f"{name}.npz")
    return tuple(found[k] for k in ("x_train", "y_train", "x_test", "y_test"))


def _idx(path: Path) -> np.ndarray:
    """An array in the format of MNIST: a magic number, whose last byte counts axes, their sizes."""
    content = gzip.decompress(path.read_bytes())
    axes = content[3]
    shape = np.frombuffer(content, ">i4", axes, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def scaled(images: np.ndarray) -> np.ndarray:
    """With a channel, of about unit variance."""
    return (images[:, None].astype(np.float32) / 255 - 0.13) / 0.31


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """Of the predictive classes of each row, in nats."""
    p = np.maximum(probabilities.astype(np.float64), 1e-30)
    return -np.sum(p * np.log(p), axis=1)


def scores(probabilities: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Of test rows."""
    chosen, surest = probabilities.argmax(1), probabilities.max(1)
    right = (chosen == y).astype(float)
    bins = np.minimum((surest * BINS).astype(int), BINS - 1)
    gaps = [abs(np.sum((right - surest)[bins == b])) for b in range(BINS)]
    picked = probabilities[np.arange(len(y)), y].astype(np.float64)
    squares = np.sum((probabilities - np.eye(probabilities.shape[1])[y]) ** 2, axis=1)
    kept = np.argsort(entropy(probabilities), kind="stable")[: int(KEPT * len(y))]
    return {
        "accuracy": 100 * float(right.mean()),
        "nll": float(-np.log(np.maximum(picked, 1e-30)).mean()),
        "ece": float(np.sum(gaps) / len(y)),
        "brier": float(squares.mean()),
        "accuracy_kept": 100 * float(right[kept].mean()),
    }


def auroc(known: np.ndarray, other: np.ndarray) -> float:
    """The probability that a row of the others has a larger entropy than a test row."""
    ranks = rankdata(np.concatenate([entropy(known), entropy(other)]))
    own = ranks[len(known) :].sum() - len(other) * (len(other) + 1) / 2
    return float(own / (len(known) * len(other)))


def most_uncertain(probabilities: np.ndarray, y: np.ndarray, num: int = 8) -> list[dict]:
    """The test rows of largest entropy."""
    entropies = entropy(probabilities)
    return [
        {"row": int(i), "says": int(probabilities[i].argmax()), "is": int(y[i])}
        for i in np.argsort(-entropies, kind="stable")[:num]
    ]
