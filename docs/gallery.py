"""Draws every algorithm on the same two data sets: `python docs/gallery.py [NAME ...]`.

One picture per algorithm in docs/gallery, the 90 % band on one-dimensional data with a gap and the
class probabilities of two moons, and seconds.json with the time of each fit. Methods run with their
defaults on a network of 20 tanh units; where a method needs a linear model it gets one.
"""

from __future__ import annotations

import json
import platform
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from sklearn.datasets import make_moons

import bayeslearn as bl
from bayeslearn.errors import ArgumentError

FOLDER = Path(__file__).parent / "gallery"
SECONDS = FOLDER / "seconds.json"
HIDDEN = ((20,), ())  # tried in turn
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#566074"


def wave() -> tuple[np.ndarray, np.ndarray]:
    """60 rows of a sine with a gap in the middle."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-2, -0.6, 30), rng.uniform(0.6, 2, 30)])
    return x[:, None], np.sin(2 * x) + 0.15 * rng.normal(size=60)


def moons() -> tuple[np.ndarray, np.ndarray]:
    """120 rows of two classes."""
    return make_moons(120, noise=0.2, random_state=0)


def fitted(likelihood: Any, name: str, data: tuple[np.ndarray, np.ndarray]) -> Any:
    """The posterior and its seconds; None where the method does not apply."""
    for hidden in HIDDEN:
        began = time.perf_counter()
        try:
            posterior = bl.fit(bl.Model(bl.networks.MLP(hidden), likelihood), name, data, seed=0)
        except ArgumentError as error:
            print(f"  {name}, hidden={hidden}: {error}", flush=True)
            continue
        return posterior, time.perf_counter() - began
    return None


def draw_band(axes: Any, posterior: bl.Posterior, x: np.ndarray, y: np.ndarray) -> None:
    """Mean, and the 90 % intervals of an observation (pale) and of the mean (dark)."""
    grid = np.linspace(-3.5, 3.5, 200)
    predictive = posterior.predict(grid[:, None])
    low, high = predictive.interval(0.9)
    mean, half = predictive.mean, 1.645 * np.sqrt(predictive.epistemic)
    axes.fill_between(grid, low, high, color=BLUE, alpha=0.18, lw=0)
    axes.fill_between(grid, mean - half, mean + half, color=BLUE, alpha=0.35, lw=0)
    axes.plot(grid, mean, color=BLUE, lw=1.2)
    axes.scatter(x[:, 0], y, s=6, color=ORANGE, lw=0)
    axes.set(xlim=(-3.5, 3.5), ylim=(-3.5, 3.5))


def draw_moons(axes: Any, posterior: bl.Posterior, x: np.ndarray, y: np.ndarray) -> None:
    """The probability of the second class."""
    across, up = np.linspace(-2.5, 3.5, 80), np.linspace(-2, 2.5, 60)
    grid = np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)
    probs = posterior.predict(grid).probs[:, 1].reshape(60, 80)
    axes.contourf(across, up, probs, levels=np.linspace(0, 1, 11), cmap="RdBu", alpha=0.85)
    axes.contour(across, up, probs, levels=[0.5], colors="black", linewidths=0.8)
    for label, color in ((0, "#8c2d04"), (1, "#08306b")):
        axes.scatter(*x[y == label].T, s=6, color=color, lw=0)


def draw(name: str) -> dict[str, float | None]:
    """Write the picture of an algorithm; its seconds on both data sets."""
    figure, both = plt.subplots(1, 2, figsize=(6.4, 2.1), layout="constrained")
    seconds: dict[str, float | None] = {}
    tasks = (
        ("wave", bl.likelihoods.Gaussian(), wave(), draw_band),
        ("moons", bl.likelihoods.Categorical(), moons(), draw_moons),
    )
    for axes, (task, likelihood, data, draw_into) in zip(both, tasks, strict=True):
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set_color("#d9dee7")
        found = fitted(likelihood, name, data)
        seconds[task] = None if found is None else round(found[1], 1)
        if found is None:
            axes.text(0.5, 0.5, "does not apply", ha="center", va="center", color=GREY)
        else:
            draw_into(axes, found[0], *data)
    path = FOLDER / f"{name}.png"
    figure.savefig(path, dpi=100)
    plt.close(figure)
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(64).save(path, optimize=True)
    return seconds


def main(names: list[str]) -> None:
    """Draw these algorithms, or all; forget those that are gone."""
    plt.switch_backend("agg")
    FOLDER.mkdir(exist_ok=True)
    stored = json.loads(SECONDS.read_text("utf-8")) if SECONDS.exists() else {}
    times = {name: row for name, row in stored.get("seconds", {}).items() if name in bl.ALGORITHMS}
    for name in names or bl.ALGORITHMS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            times[name] = draw(name)
        print(name, times[name], flush=True)
        machine = f"{platform.machine()}, Python {platform.python_version()}"
        about = {"machine": machine, "seconds": {n: times[n] for n in bl.ALGORITHMS if n in times}}
        SECONDS.write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    for path in FOLDER.glob("*.png"):
        if path.stem not in bl.ALGORITHMS:
            path.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
