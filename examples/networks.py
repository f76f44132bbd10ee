"""One short example for each network: data, a model, a fit, a prediction that says how sure it is.

Run `python examples/networks.py` for all of them, or name some: `... networks.py gru tabl`.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import bayeslearn as bl

ROWS, NEW = 300, 100


def fit_and_tell(network: Any, likelihood: Any, x: Any, y: np.ndarray) -> bl.Predictive:
    """Learn from the first rows with VOGN and score the others."""

    def part(rows: slice) -> Any:
        return {k: v[rows] for k, v in x.items()} if isinstance(x, dict) else x[rows]

    old, new = slice(None, ROWS), slice(ROWS, None)
    model = bl.Model(network, likelihood)
    posterior = bl.fit(model, bl.VOGN(), (part(old), y[old]), seed=0, num_steps=300)
    predictive = posterior.predict(part(new))
    score = bl.metrics.log_likelihood(predictive, y[new])
    if predictive.kind == "classification":
        how = f"accuracy {bl.metrics.accuracy(predictive, y[new]):.2f}"
    else:
        how = f"rmse {bl.metrics.rmse(predictive, y[new]):.2f}"
    sure = float(np.mean(predictive.epistemic))
    print(
        f"{type(network).__name__:14} held-out log-likelihood {score:6.3f}, {how},"
        f" epistemic {sure:.4f}"
    )
    return predictive


def mlp() -> bl.Predictive:
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(ROWS + NEW, 1))
    y = np.sin(2 * x[:, 0]) + 0.2 * rng.normal(size=len(x))
    return fit_and_tell(bl.networks.MLP([20]), bl.likelihoods.Gaussian(), x, y)


def rbf() -> bl.Predictive:
    """A bump on the plane."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS + NEW, 2))
    y = np.exp(-np.sum(x**2, axis=1)) + 0.1 * rng.normal(size=len(x))
    return fit_and_tell(bl.networks.RBF(10), bl.likelihoods.Gaussian(), x, y)


def bars() -> tuple[np.ndarray, np.ndarray]:
    """Colour images, channels last, with a bar: is it upright?"""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, size=ROWS + NEW)
    x = 0.5 * rng.normal(size=(len(y), 6, 6, 3))
    for image, label, place in zip(x, y, rng.integers(0, 6, size=len(y)), strict=True):
        if label:
            image[:, place] += 1.0
        else:
            image[place, :] += 1.0
    return x, y


def cnn() -> bl.Predictive:
    network = bl.networks.CNN([4], pool_size=3, hidden=[8], channels="last")
    return fit_and_tell(network, bl.likelihoods.Bernoulli(), *bars())


def resnet() -> bl.Predictive:
    """The same images; norm="filter-response" would keep examples independent too."""
    network = bl.networks.ResNet([2], norm="group", groups=1, channels="last")
    return fit_and_tell(network, bl.likelihoods.Bernoulli(), *bars())


def waves() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Sines of unequal lengths, padded to the longest; what comes next?"""
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 11, size=ROWS + NEW)
    phase = rng.uniform(0, 2 * np.pi, size=(len(lengths), 1))
    values = np.sin(phase + 0.6 * np.arange(10)) + 0.1 * rng.normal(size=(len(lengths), 10))
    y = np.sin(phase[:, 0] + 0.6 * lengths)
    return {"values": values[..., None], "mask": np.arange(10) < lengths[:, None]}, y


def rnn() -> bl.Predictive:
    return fit_and_tell(bl.networks.RNN([6]), bl.likelihoods.Gaussian(), *waves())


def lstm() -> bl.Predictive:
    network = bl.networks.LSTM([4], bidirectional=True)
    return fit_and_tell(network, bl.likelihoods.Gaussian(), *waves())


def gru() -> bl.Predictive:
    return fit_and_tell(bl.networks.GRU([4, 4]), bl.likelihoods.Gaussian(), *waves())


def panel() -> tuple[np.ndarray, np.ndarray]:
    """Ten steps of four features; the recent ones weigh more."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS + NEW, 10, 4))
    y = np.linspace(0, 1, 10) ** 3 @ x @ np.array([1.0, -1.0, 0.5, 0.0])
    return x, y + 0.3 * rng.normal(size=len(y))


def bilinear() -> bl.Predictive:
    return fit_and_tell(bl.networks.BL([]), bl.likelihoods.Gaussian(), *panel())


def tabl() -> bl.Predictive:
    network = bl.networks.TABL([(3, 5)], activation="tanh")
    return fit_and_tell(network, bl.likelihoods.Gaussian(), *panel())


def bag_of_features() -> bl.Predictive:
    """Three classes of series that differ in where their last steps go."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, size=ROWS + NEW)
    x = rng.normal(size=(len(y), 16, 2))
    x[:, 8:] += 1.5 * np.array([[1, 0], [-0.5, 0.9], [-0.5, -0.9]])[y][:, None]
    network = bl.networks.BagOfFeatures(6, windows=[0.25, 0.5, 1.0], hidden=[])
    return fit_and_tell(network, bl.likelihoods.Categorical(), x, y)


EXAMPLES = [mlp, rbf, cnn, resnet, rnn, lstm, gru, bilinear, tabl, bag_of_features]


def main(names: list[str]) -> None:
    for example in EXAMPLES:
        if not names or example.__name__ in names:
            example()


if __name__ == "__main__":
    main(sys.argv[1:])
