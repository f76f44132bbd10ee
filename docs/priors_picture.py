"""Draws docs/figures/priors.png, and prints the table of docs/priors.md.

python docs/priors_picture.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

import bayeslearn as bl
from bayeslearn.precision import double_precision

PICTURE = Path(__file__).parent / "figures" / "priors.png"
GAINS = (1.0, 3.0, 10.0)
NETWORKS = {"20 units": (20,), "100 and 100 units": (100, 100)}
NUM_DRAWS = 8
BLUE = "#0072b2"


@double_precision
def functions(hidden: tuple[int, ...], prior: Any, x: np.ndarray, columns: int, num: int) -> Any:
    """Outputs of a network of tanh units for draws of its prior: (draws, rows, columns)."""
    likelihood = bl.likelihoods.Gaussian(noise_scale=1.0)
    model = bl.Model(bl.networks.MLP(hidden), likelihood, prior)
    target, params = model.bind((x, np.zeros((len(x), columns))), jax.random.key(0))

    def one(key: Any) -> Any:
        return target.outputs(target.prior.sample(key, params), target.data.x)

    return np.asarray(jax.vmap(one)(jax.random.split(jax.random.key(1), num)))


def picture() -> None:
    """Functions of one input, by gain and network."""
    grid = np.linspace(-3, 3, 200)[:, None]
    figure, axes = plt.subplots(len(NETWORKS), len(GAINS), figsize=(9, 4.6), sharex=True)
    for row, (name, hidden) in zip(axes, NETWORKS.items(), strict=True):
        for axis, gain in zip(row, GAINS, strict=True):
            drawn = functions(hidden, bl.priors.Normal.fan_in(gain), grid, 1, NUM_DRAWS)
            axis.plot(grid, drawn[..., 0].T, color=BLUE, linewidth=1, alpha=0.8)
            axis.set_title(f"gain {gain:g}, {name}", fontsize=9)
            axis.tick_params(labelsize=8)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=110)
    plt.close(figure)
    with Image.open(PICTURE) as image:
        image.convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(PICTURE, optimize=True)


def table() -> None:
    """Outputs for rows of 20 standard normal columns, and the classes they would say."""
    x = np.random.default_rng(0).normal(size=(100, 20))
    for name, hidden in NETWORKS.items():
        for gain in GAINS:
            drawn = functions(hidden, bl.priors.Normal.fan_in(gain), x, 10, 200)
            probs = np.asarray(jax.nn.softmax(drawn, axis=-1))
            sure = np.mean(probs.max(axis=-1) > 0.9)
            print(f"| {name} | {gain:g} | {drawn.std():.1f} | {100 * sure:.0f} % |")


if __name__ == "__main__":
    picture()
    table()
