"""Networks: a deep ensemble written plainly, bde, and bayeslearn itself.

Learning rate and patience of the deep ensemble were chosen among six settings on held-out training
rows of yacht and concrete.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from rivals_data import standardised
from rivals_methods import Outcome, inner_split
from rivals_scores import GaussianMixture

SETTINGS: dict[str, dict[str, Any]] = {
    "deep-ensemble": {
        "members": 5,
        "hidden": [50, 50],
        "activation": "relu",
        "outputs": "mean and log of the standard deviation, or logits",
        "optimizer": "Adam",
        "learning_rate": 1e-2,
        "batch_size": 32,
        "max_epochs": 2000,
        "patience": 100,
        "validation": 0.15,
        "min_std": 1e-3,
    },
    "bde": {  # the example of its README
        "hidden_layers": [16, 16],
        "n_members": 8,
        "epochs": 200,
        "validation_split": 0.15,
        "lr": 1e-3,
        "weight_decay": 1e-4,
        "warmup_steps": 5000,
        "n_samples": 2000,
        "n_thinning": 2,
        "patience": 10,
    },
    "bde-classes": {  # the same for classes
        "hidden_layers": [16, 16],
        "n_members": 4,
        "epochs": 1000,
        "validation_split": 0.15,
        "lr": 1e-3,
        "warmup_steps": 400,
        "n_samples": 100,
        "n_thinning": 1,
        "patience": 10,
    },
}
MAX_COMPONENTS = 1000  # of bde's mixture, thinned evenly


def deep_ensemble(x, y, x_test, kind: str, seed: int) -> Outcome:
    """Lakshminarayanan et al. 2017, without adversarial training."""
    settings = SETTINGS["deep-ensemble"]
    x, x_test = standardised(x, x), standardised(x_test, x)
    is_regression = kind == "regression"
    target = standardised(y, y) if is_regression else y
    outputs, epochs = [], []
    for member in range(settings["members"]):
        member_seed = 1000 * seed + member
        rows = inner_split(y, kind, member_seed, settings["validation"])
        found, best_epoch = train_member(x, target, rows, x_test, is_regression, member_seed)
        outputs.append(found)
        epochs.append(best_epoch)
    stacked = np.stack(outputs).astype(np.float64)
    if is_regression:
        stds = settings["min_std"] + np.exp(stacked[..., 1])
        means = y.mean() + y.std() * stacked[..., 0]
        return Outcome(GaussianMixture(means, y.std() * stds), {"epochs": epochs})
    return Outcome(softmax(stacked).mean(axis=0), {"epochs": epochs})


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def train_member(x, y, rows, x_test, is_regression: bool, seed: int) -> tuple[np.ndarray, int]:
    """Outputs at the test rows of the epoch that was best on the validation rows, and the epoch."""
    import jax
    import jax.numpy as jnp
    import optax

    settings = SETTINGS["deep-ensemble"]
    fit, held_out = rows
    rng = np.random.default_rng(seed)
    num_outputs = 2 if is_regression else int(y.max()) + 1
    sizes = [x.shape[1], *settings["hidden"], num_outputs]
    params = [
        (rng.normal(size=(n, m)).astype(np.float32) * np.sqrt(2 / n), np.zeros(m, np.float32))
        for n, m in pairwise(sizes)
    ]
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    loss = partial(mean_loss, is_regression=is_regression, min_std=settings["min_std"])
    optimizer = optax.adam(settings["learning_rate"])
    size = min(settings["batch_size"], len(fit))
    num_batches = len(fit) // size
    x = jnp.asarray(x, jnp.float32)
    y = jnp.asarray(y, jnp.float32 if is_regression else jnp.int32)

    @jax.jit
    def epoch(params, state, batches, x, y, validation):
        def step(carry, batch):
            params, state = carry
            gradient = jax.grad(loss)(params, x[batch], y[batch])
            updates, state = optimizer.update(gradient, state)
            return (optax.apply_updates(params, updates), state), None

        (params, state), _ = jax.lax.scan(step, (params, state), batches)
        return params, state, loss(params, *validation)

    state = optimizer.init(params)
    validation = x[held_out], y[held_out]
    best, best_params, best_epoch = np.inf, params, 0
    for number in range(1, settings["max_epochs"] + 1):
        order = rng.permutation(fit)[: num_batches * size].reshape(num_batches, size)
        params, state, value = epoch(params, state, order, x, y, validation)
        if float(value) < best:
            best, best_params, best_epoch = float(value), params, number
        elif number - best_epoch >= settings["patience"]:
            break
    return np.asarray(network(best_params, jnp.asarray(x_test, jnp.float32))), best_epoch


def network(params, x):
    import jax

    for weight, bias in params[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = params[-1]
    return x @ weight + bias


def mean_loss(params, x, y, is_regression: bool, min_std: float):
    """Mean negative log-likelihood."""
    import jax
    import jax.numpy as jnp

    outputs = network(params, x)
    if not is_regression:
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], axis=1))
    std = min_std + jnp.exp(outputs[:, 1])
    return jnp.mean(0.5 * ((y - outputs[:, 0]) / std) ** 2 + jnp.log(std))


def bde(x, y, x_test, kind: str, seed: int) -> Outcome:
    """sklearn-contrib-bde (imported as `bde`)."""
    from bde import BdeClassifier, BdeRegressor
    from bde.loss import CategoricalCrossEntropy, GaussianNLL

    x, x_test = standardised(x, x).astype("float32"), standardised(x_test, x).astype("float32")
    if kind == "classification":
        classifier = BdeClassifier(
            loss=CategoricalCrossEntropy(), seed=seed, **SETTINGS["bde-classes"]
        )
        classifier.fit(x=x, y=y.astype("int32"))
        return Outcome(np.asarray(classifier.predict_proba(x_test)), {})
    model = BdeRegressor(loss=GaussianNLL(), seed=seed, **SETTINGS["bde"])
    model.fit(x=x, y=standardised(y, y).astype("float32"))
    raw = np.asarray(model.predict(x_test, raw=True), np.float64).reshape(-1, len(x_test), 2)
    raw = raw[:: -(-len(raw) // MAX_COMPONENTS)]
    stds = np.logaddexp(0.0, raw[..., 1]) + 1e-6  # its own softplus and floor
    notes = {"components": len(raw)}
    return Outcome(GaussianMixture(y.mean() + y.std() * raw[..., 0], y.std() * stds), notes)


@dataclass(frozen=True)
class OwnDensity:
    """A predictive of bayeslearn."""

    predictive: Any

    @property
    def mean(self) -> np.ndarray:
        return np.asarray(self.predictive.mean)

    @property
    def std(self) -> np.ndarray:
        return np.asarray(self.predictive.std)

    def log_prob(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(self.predictive.log_prob(y))

    def crps(self, y: np.ndarray) -> float:
        from bayeslearn.results import metrics

        return metrics.crps(self.predictive, y)

    def interval(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        return self.predictive.interval(level)


def ours(method: str, x, y, x_test, kind: str, seed: int) -> Outcome:
    """The estimator with its defaults, but for the method."""
    import warnings

    import bayeslearn as bl

    is_regression = kind == "regression"
    estimator = bl.BayesianNNRegressor if is_regression else bl.BayesianNNClassifier
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = estimator(method=method, random_state=seed).fit(x, y)
    posterior = model.posterior_
    notes = {
        "chosen": {name: str(value) for name, value in model.chosen_.items()},
        "baseline": getattr(model, "baseline_", None),
        "notes": list(posterior.notes),
        "compile_seconds": posterior.compile_time,
    }
    if not is_regression:
        return Outcome(model.predict_proba(x_test), notes)
    return Outcome(OwnDensity(model.predictive(x_test)), notes)
