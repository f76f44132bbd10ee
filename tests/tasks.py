"""Held-out tasks, one made for each network: `task(name, rows, seed)`.

The data are drawn by NumPy alone; each network is tiny, so that every algorithm runs in seconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bayeslearn.models import networks
from bayeslearn.models.likelihoods import classes, gaussian

TEST_ROWS = 1000


def task(name: str, rows: int = 300, seed: int = 0) -> tuple[Any, Any, tuple, tuple]:
    """(network, likelihood, train, test): `rows` rows to learn from, 1000 held out."""
    network, likelihood, generate = TASKS[name]
    x, y = generate(np.random.default_rng(seed), rows + TEST_ROWS)
    train, test = slice(None, rows), slice(rows, None)
    return network, likelihood, (_rows(x, train), y[train]), (_rows(x, test), y[test])


def _rows(x: Any, chosen: slice) -> Any:
    return {name: leaf[chosen] for name, leaf in x.items()} if isinstance(x, dict) else x[chosen]


def sine_phase(rng: np.random.Generator, rows: int) -> tuple[Any, np.ndarray]:
    """A noisy sine of 6 to 9 steps, padded with rubbish; y is where it is a quarter turn later."""
    time, turn = 9, 0.7
    phase = rng.uniform(0, 2 * np.pi, size=(rows, 1))
    lengths = rng.integers(6, time + 1, size=rows)
    mask = np.arange(time) < lengths[:, None]
    values = np.sin(phase + turn * np.arange(time)) + 0.1 * rng.normal(size=(rows, time))
    values = np.where(mask, values, rng.uniform(-9, 9, size=values.shape))
    last = phase[:, 0] + turn * (lengths - 1)
    y = np.cos(last) + 0.1 * rng.normal(size=rows)
    return {"values": values[..., None], "mask": mask.astype(float)}, y


def bars(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A noisy image of 6 x 6 with a bar: y tells whether it is upright."""
    y = rng.integers(0, 2, size=rows)
    x = 0.8 * rng.normal(size=(rows, 6, 6))
    place = rng.integers(0, 6, size=rows)
    for i in range(rows):
        x[i, place[i], :] += 1.0 * (y[i] == 0)
        x[i, :, place[i]] += 1.0 * (y[i] == 1)
    return x, y


def bilinear(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A series of 6 steps and 4 features; y is a feature mix, weighed over time, and noise."""
    x = rng.normal(size=(rows, 6, 4))
    features = np.array([1.0, -0.5, 0.0, 0.5])
    times = np.array([0.0, 0.0, 0.1, 0.2, 0.5, 1.0])
    return x, times @ x @ features + 0.3 * rng.normal(size=rows)


def mixtures(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """20 steps drawn around three points, by shares that differ between the two classes."""
    y = rng.integers(0, 2, size=rows)
    centres = np.array([[-1.2, -0.7], [1.2, -0.7], [0.0, 1.4]])
    shares = np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]])
    kind = np.array([rng.choice(3, size=20, p=shares[label]) for label in y])
    return centres[kind] + 0.4 * rng.normal(size=(rows, 20, 2)), y


def radial(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A ring around the origin of the plane, and noise."""
    x = rng.normal(size=(rows, 2))
    radius = np.linalg.norm(x, axis=1)
    return x, np.exp(-2 * (radius - 1) ** 2) + 0.1 * rng.normal(size=rows)


TASKS = {
    "CNN": (
        networks.CNN([3], pooling="mean", pool_size=6, hidden=[]),
        classes.Bernoulli(),
        bars,
    ),
    "ResNet": (networks.ResNet([2], kernel_size=3, groups=1), classes.Bernoulli(), bars),
    "RNN": (networks.RNN([5]), gaussian.Gaussian(), sine_phase),
    "LSTM": (networks.LSTM([4]), gaussian.Gaussian(), sine_phase),
    "GRU": (networks.GRU([4]), gaussian.Gaussian(), sine_phase),
    "RBF": (networks.RBF(10), gaussian.Gaussian(), radial),
    "BL": (networks.BL([]), gaussian.Gaussian(), bilinear),
    "TABL": (networks.TABL([]), gaussian.Gaussian(), bilinear),
    "BagOfFeatures": (networks.BagOfFeatures(4, hidden=[4]), classes.Bernoulli(), mixtures),
}
