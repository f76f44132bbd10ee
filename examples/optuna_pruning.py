"""Search for settings with Optuna; trials that fall behind are pruned through the callback.

    pip install optuna
    python examples/optuna_pruning.py

The callback reports the validation log-likelihood at every evaluation of the method's own phase. It
ends the phase where Optuna's median pruner finds that other trials were better at the same step.
"""

from __future__ import annotations

import numpy as np
import optuna

import bayeslearn as bl


def data(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, size=(rows, 2))
    return x, np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] ** 2 + 0.2 * rng.normal(size=rows)


TRAIN, VALIDATION = data(120, seed=0), data(60, seed=1)


def objective(trial: optuna.Trial) -> float:
    width = trial.suggest_int("width", 4, 32, log=True)
    learning_rate = trial.suggest_float("learning_rate", 1e-3, 0.3, log=True)
    model = bl.Model(bl.networks.MLP([width]), bl.likelihoods.Gaussian())

    def report(event: bl.FitEvent) -> bool:
        if event.phase != "main":
            return False
        trial.report(event.metrics["validation"], event.step)
        return trial.should_prune()

    posterior = bl.fit(
        *(model, bl.VOGN(learning_rate=learning_rate), TRAIN),
        **{"seed": 0, "validation": VALIDATION, "num_steps": 1000, "callback": report},
    )
    if trial.should_prune():
        raise optuna.TrialPruned()
    x, y = VALIDATION
    return bl.metrics.log_likelihood(posterior.predict(x), y)


def main() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=100)
    sampler = optuna.samplers.TPESampler(seed=0)
    study = optuna.create_study(direction="maximize", pruner=pruner, sampler=sampler)
    study.optimize(objective, n_trials=10)
    for trial in study.trials:
        print(trial.number, trial.state.name, trial.params, trial.value)
    print("best:", study.best_params, f"log-likelihood {study.best_value:.3f}")


if __name__ == "__main__":
    main()
