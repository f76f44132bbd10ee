"""What all contenders are given: the same rows, and one measure of a lower bound. NumPy alone."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

SEED = 0
MLP = (784, 400, 400, 10)
MLP_ROWS, BATCH = 4096, 128
INPUTS, HIDDEN, ROWS = 13, 50, 455
LEAPFROG, STEP_SIZE, WEIGHT_SCALE = 32, 0.003, 0.3
LABOUR_SCALE = math.sqrt(5)
LABOUR_BEST = -356.6385  # nats: the lower bound of the best full Gaussian


def image_rows(sizes=MLP, rows=MLP_ROWS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(SEED)
    x = rng.normal(size=(rows, sizes[0])).astype(np.float32)
    return x, rng.integers(0, sizes[-1], rows)


def regression_rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, INPUTS))
    return x, np.sin(x[:, 0]) + 0.5 * x[:, 1] + 0.3 * rng.normal(size=ROWS)


def labour_rows(data: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """564 rows with a leading one; four columns standardised on all rows."""
    from faithfulness import read_table

    data = Path(data)
    names, x, y = read_table(data / "labour_mroz.csv.gz")
    for column in map(names.index, ("age", "educ", "huswage", "log_faminc")):
        x[:, column] = (x[:, column] - x[:, column].mean()) / x[:, column].std(ddof=1)
    train = np.load(data / "splits" / "labour_mroz.npz")["train"].reshape(-1)
    return np.column_stack([np.ones(len(x)), x])[train], y[train]


def labour_gap(mean, cholesky, x, y, draws: int = 20_000, chunk: int = 20_000) -> float:
    """Nats that N(mean, C C^T) stays below the best Gaussian, with fresh draws (s.e. 0.002)."""
    mean, cholesky = np.asarray(mean, np.float64), np.asarray(cholesky, np.float64)
    rng, total, k = np.random.default_rng(2026), 0.0, len(mean)
    for _ in range(draws // chunk):
        w = mean + rng.normal(size=(chunk, k)) @ cholesky.T
        logits = w @ x.T
        total += (y * logits - np.logaddexp(0.0, logits)).sum()
        total -= 0.5 * (w**2).sum() / LABOUR_SCALE**2
    prior = -0.5 * k * math.log(2 * math.pi * LABOUR_SCALE**2)
    entropy = 0.5 * k * (1 + math.log(2 * math.pi)) + np.linalg.slogdet(cholesky)[1]
    return LABOUR_BEST - (total / draws + prior + entropy)
