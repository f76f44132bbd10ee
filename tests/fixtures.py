"""Small fits of every algorithm, family, likelihood, prior and network: what fixtures hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

import bayeslearn as bl

likelihoods, networks, priors = bl.likelihoods, bl.networks, bl.priors


def new_rows(rows: int, columns: int = 2) -> np.ndarray:
    """The same numbers on every machine."""
    grid = np.arange(rows * columns, dtype=np.float64).reshape(rows, columns)
    return np.round(np.sin(1.7 * grid + 0.3 * grid**2), 3)


class Case(NamedTuple):
    algorithm: Callable[[], bl.Algorithm]
    network: Callable[[], object] = lambda: networks.MLP([2])
    likelihood: Callable[[], likelihoods.Likelihood] = lambda: likelihoods.Gaussian()
    prior: Callable[[], object] = lambda: priors.Normal()
    kind: str = "numbers"
    inputs: tuple[int, ...] = (2,)
    options: dict = {}  # noqa: RUF012
    model_options: dict = {}  # noqa: RUF012
    is_resumed: bool = False
    is_updated: bool = False

    def model(self) -> bl.Model:
        return bl.Model(self.network(), self.likelihood(), self.prior(), **self.model_options)


SAMPLERS = {
    "metropolis-hastings": {"num_warmup": 30, "num_samples": 10, "thin": 2},
    "hmc": {"num_warmup": 20, "num_samples": 10, "max_leapfrog": 4},
    "nuts": {"num_warmup": 20, "num_samples": 10, "max_doublings": 2},
}


# Those that there were when the fixtures were written.
ALGORITHMS = (
    *("map", "mc-dropout", "bayes-by-backprop", "metropolis-hastings", "hmc", "nuts"),
    *("natural-gradient", "bbvi", "ng-bbvi", "ngvi", "von", "vadam", "vogn", "qbvi", "mgvb"),
    *("emgvb", "laplace", "conjugate"),
)


def _algorithm(name: str) -> Callable[[], bl.Algorithm]:
    return lambda: bl.ALGORITHMS[name](**SAMPLERS.get(name, {}))


def _cases() -> dict[str, Case]:
    cases = {}
    for name in ALGORITHMS:
        linear = {"network": lambda: networks.MLP([])} if name == "conjugate" else {}
        cases[f"algorithm {name}"] = Case(_algorithm(name), is_resumed=True, **linear)
    for name in ("map", "vogn", "hmc", "bayes-by-backprop"):
        cases[f"classes {name}"] = Case(
            _algorithm(name),
            likelihood=lambda: likelihoods.Bernoulli(),
            kind="labels",
            is_resumed=True,
        )
    block = {"covariance": "block"}
    for name in ("emgvb", "ngvi", "laplace", "bbvi"):
        cases[f"block {name}"] = Case(lambda n=name: bl.ALGORITHMS[n](**block))
        cases[f"diagonal {name}"] = Case(lambda n=name: bl.ALGORITHMS[n](covariance="diagonal"))
    cases["conjugate known noise"] = Case(
        lambda: bl.Conjugate(),
        network=lambda: networks.MLP([]),
        likelihood=lambda: likelihoods.Gaussian(noise_scale=0.5),
    )
    cases["conjugate updated"] = Case(
        lambda: bl.Conjugate(), network=lambda: networks.MLP([]), is_updated=True
    )
    for name in ("vogn", "emgvb", "mc-dropout", "hmc"):
        cases[f"updated {name}"] = Case(_algorithm(name), is_updated=True)
    pair = {"kind": "pairs"}
    cases |= {
        "likelihood known": Case(
            _algorithm("map"), likelihood=lambda: likelihoods.Gaussian(noise_scale=0.3)
        ),
        "likelihood heteroscedastic": Case(
            _algorithm("vogn"), likelihood=lambda: likelihoods.HeteroscedasticGaussian()
        ),
        "likelihood covariance": Case(
            _algorithm("vogn"), likelihood=lambda: likelihoods.MultivariateGaussian(), **pair
        ),
        "likelihood covariance drawn": Case(
            _algorithm("hmc"), likelihood=lambda: likelihoods.MultivariateGaussian(), **pair
        ),
        "likelihood covariance known": Case(
            _algorithm("map"),
            likelihood=lambda: likelihoods.MultivariateGaussian(np.eye(2) + 0.5),
            **pair,
        ),
        "likelihood counts": Case(
            _algorithm("vogn"), likelihood=lambda: likelihoods.Poisson(), kind="counts"
        ),
        "likelihood classes": Case(
            _algorithm("vogn"), likelihood=lambda: likelihoods.Categorical(), kind="classes"
        ),
        "prior by name": Case(
            _algorithm("vogn"), prior=lambda: priors.Normal(scale={"*.bias": 2.0, "*": 0.5})
        ),
        "prior fan-in": Case(_algorithm("vogn"), prior=lambda: priors.Normal.fan_in(2.0)),
        "prior learned": Case(
            _algorithm("bayes-by-backprop"), prior=lambda: priors.Normal.fan_in(learn=True)
        ),
        "prior covariance": Case(
            _algorithm("vogn"),
            network=lambda: networks.MLP([]),
            prior=lambda: priors.Normal(cov=np.eye(3) + 0.3),
        ),
        "prior laplace": Case(_algorithm("ngvi"), prior=lambda: priors.Laplace(scale=0.7)),
        "prior mixture": Case(_algorithm("hmc"), prior=lambda: priors.ScaleMixture()),
        "part frozen": Case(
            _algorithm("emgvb"), model_options={"bayesian": "layers.1.*"}, is_resumed=True
        ),
        "part joint": Case(
            _algorithm("bayes-by-backprop"),
            model_options={"bayesian": "layers.1.*", "frozen": "joint"},
            is_resumed=True,
        ),
        "minibatches": Case(_algorithm("vogn"), options={"batch_size": 8}, is_resumed=True),
        "validation": Case(
            _algorithm("map"),
            options={"validation": (new_rows(6), np.cos(np.arange(6.0)))},
            is_resumed=True,
        ),
        "starts": Case(_algorithm("emgvb"), options={"starts": 2}, is_resumed=True),
        "network cnn": Case(
            _algorithm("map"), network=lambda: networks.CNN([2], hidden=[3]), inputs=(1, 6, 6)
        ),
        "network resnet": Case(
            _algorithm("map"), network=lambda: networks.ResNet([2]), inputs=(1, 6, 6)
        ),
        "network rnn": Case(_algorithm("map"), network=lambda: networks.RNN(2), inputs=(4, 2)),
        "network lstm": Case(_algorithm("map"), network=lambda: networks.LSTM(2), inputs=(4, 2)),
        "network gru": Case(_algorithm("map"), network=lambda: networks.GRU(2), inputs=(4, 2)),
        "network rbf": Case(_algorithm("map"), network=lambda: networks.RBF(3)),
        "network tabl": Case(
            _algorithm("map"), network=lambda: networks.TABL([(2, 2)]), inputs=(4, 3)
        ),
        "network bag of features": Case(
            _algorithm("map"), network=lambda: networks.BagOfFeatures(3), inputs=(4, 2)
        ),
    }
    return cases


CASES = _cases()


def x_of(case: Case, rows: int = 24) -> np.ndarray:
    return new_rows(rows, int(np.prod(case.inputs))).reshape(rows, *case.inputs)


def data_of(case: Case) -> tuple[np.ndarray, np.ndarray]:
    x = x_of(case)
    total = x.reshape(len(x), -1)
    numbers = np.round(np.tanh(total[:, 0] + 0.5 * total[:, 1]) + 0.2 * np.cos(np.arange(24.0)), 3)
    y = {
        "numbers": numbers,
        "pairs": np.column_stack([numbers, np.round(total[:, 0], 3)]),
        "labels": (numbers > 0).astype(int),
        "classes": np.digitize(numbers, [-0.5, 0.5]),
        "counts": np.floor(2 + 2 * numbers).clip(0).astype(int),
    }[case.kind]
    return x, y


def fit_options(case: Case) -> dict:
    steps = {"num_chains": 2} if case.algorithm().capabilities.is_sampler else {"num_steps": 30}
    return steps | case.options


def numbers_of(posterior: bl.Posterior, case: Case) -> dict[str, list[float]]:
    """What a posterior says, to be compared with what it says later."""
    predictive = posterior.predict(x_of(case, 5), num_samples=16, seed=0)
    leaves = jax.tree.leaves(posterior.family.mean)
    return {
        "mean": np.concatenate([np.ravel(leaf) for leaf in leaves]).astype(float).tolist(),
        "predicted": np.ravel(predictive.mean).tolist(),
        "total": np.ravel(predictive.total).tolist(),
    }
