"""The rivals that are not networks: boosted trees, forests, Gaussian processes, linear models.

Each is a function (x, y, x_test, kind, seed) -> Outcome that imports its library itself, since
libraries live in environments of their own. Settings are those of its documents; `SETTINGS` goes
into every cell. A target whose scale a method might mind is standardised.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from rivals_data import standardised
from rivals_scores import Density, GaussianMixture, Quantiles

SETTINGS: dict[str, dict[str, Any]] = {
    "ngboost": {
        "distribution": "Normal, or categorical",
        "n_estimators": 500,
        "learning_rate": 0.01,
        "early_stopping_rounds": 50,
        "validation": 0.2,
        "refit": "regression: on all rows with the number of stages found, as in its paper",
    },
    "lightgbm": {
        "learning_rate": 0.05,
        "num_boost_round": 2000,
        "early_stopping_rounds": 50,
        "folds": 5,
        "sd": "root of the cross-validated mean squared error, the same for all rows",
        "refit": "on all rows with the number of rounds found",
    },
    "catboost": {
        "loss_function": "RMSEWithUncertainty, or Logloss and MultiClass",
        "iterations": 1000,
        "early_stopping_rounds": 50,
        "validation": 0.2,
        "refit": "on all rows with the number of iterations found",
    },
    "gp": {
        "kernel": "constant * RBF + white; a length scale for each column up to max_ard_columns",
        "max_ard_columns": 20,
        "n_restarts_optimizer": 1,
        "max_rows": 2000,
        "max_rows_classes": 1000,
        "subset": "drawn at random without replacement, with the split's seed",
        "classes": "Laplace approximation, without the white noise, one against the rest",
    },
    "quantile-forest": {
        "n_estimators": 500,
        "quantiles": 100,
        "density": "Gaussian kernels at the quantiles",
        "bandwidths": [0.1, 0.2, 0.4, 0.8, 1.6],
        "bandwidth": "of the sd of a row's quantiles, by the out-of-bag log-likelihood",
        "min_bandwidth": "0.1 of the out-of-bag RMSE",
    },
    "random-forest": {
        "n_estimators": 500,
        "smoothing": "one tree that gives all classes the same probability is added",
    },
    "logistic-regression": {"Cs": 10, "folds": 5, "scoring": "neg_log_loss"},
}


class Outcome(NamedTuple):
    """A density, or class probabilities (rows, classes), and what a fit reports of itself."""

    prediction: Density | np.ndarray
    notes: dict[str, Any]


def inner_split(y: np.ndarray, kind: str, seed: int, fraction: float) -> tuple:
    """Rows to fit and rows to validate on."""
    from sklearn.model_selection import train_test_split

    labels = y if kind == "classification" and np.bincount(y).min() > 1 else None
    rows = np.arange(len(y))
    return train_test_split(rows, test_size=fraction, random_state=seed, stratify=labels)


def ngboost(x, y, x_test, kind: str, seed: int) -> Outcome:
    from ngboost import NGBClassifier, NGBRegressor
    from ngboost.distns import Normal, k_categorical

    settings = SETTINGS["ngboost"]
    is_regression = kind == "regression"
    estimator = NGBRegressor if is_regression else NGBClassifier
    options = {
        "Dist": Normal if is_regression else k_categorical(int(y.max()) + 1),
        "learning_rate": settings["learning_rate"],
        "random_state": seed,
        "verbose": False,
    }
    target = standardised(y, y) if is_regression else y
    fit, held_out = inner_split(y, kind, seed, settings["validation"])
    model = estimator(n_estimators=settings["n_estimators"], **options).fit(
        x[fit],
        target[fit],
        X_val=x[held_out],
        Y_val=target[held_out],
        early_stopping_rounds=settings["early_stopping_rounds"],
    )
    stages = int(model.best_val_loss_itr) + 1
    if not is_regression:  # a refit finds other step sizes, for which the number is not right
        return Outcome(model.predict_proba(x_test, max_iter=stages), {"stages": stages})
    model = estimator(n_estimators=stages, **options).fit(x, target)
    found = model.pred_dist(x_test).params
    mean, std = y.mean() + y.std() * found["loc"], y.std() * found["scale"]
    return Outcome(GaussianMixture.single(mean, std), {"stages": stages})


def lightgbm(x, y, x_test, kind: str, seed: int) -> Outcome:
    import lightgbm as lgb

    settings = SETTINGS["lightgbm"]
    num_classes = int(y.max()) + 1 if kind == "classification" else 0
    if kind == "regression":
        task, metric = {"objective": "regression"}, "l2"
    elif num_classes == 2:
        task, metric = {"objective": "binary"}, "binary_logloss"
    else:
        task, metric = {"objective": "multiclass", "num_class": num_classes}, "multi_logloss"
    options = task | {
        "learning_rate": settings["learning_rate"],
        "metric": metric,
        "seed": seed,
        "num_threads": 1,
        "verbose": -1,
    }
    found = lgb.cv(
        options,
        lgb.Dataset(x, y),
        num_boost_round=settings["num_boost_round"],
        nfold=settings["folds"],
        stratified=kind == "classification",
        seed=seed,
        callbacks=[lgb.early_stopping(settings["early_stopping_rounds"], verbose=False)],
    )[f"valid {metric}-mean"]
    notes = {"rounds": len(found), "cross_validated": float(found[-1])}
    model = lgb.train(options, lgb.Dataset(x, y), num_boost_round=len(found))
    predicted = np.asarray(model.predict(x_test))
    if kind == "regression":
        return Outcome(GaussianMixture.single(predicted, np.sqrt(found[-1])), notes)
    if num_classes == 2:
        predicted = np.column_stack([1 - predicted, predicted])
    return Outcome(predicted, notes)


def catboost(x, y, x_test, kind: str, seed: int) -> Outcome:
    from catboost import CatBoostClassifier, CatBoostRegressor

    settings = SETTINGS["catboost"]
    options: dict[str, Any] = {
        "random_seed": seed,
        "thread_count": 1,
        "verbose": False,
        "allow_writing_files": False,
    }
    if kind == "regression":
        estimator, target = CatBoostRegressor, standardised(y, y)
        options["loss_function"] = "RMSEWithUncertainty"
    else:
        estimator, target = CatBoostClassifier, y
        options["loss_function"] = "Logloss" if y.max() == 1 else "MultiClass"
    fit, held_out = inner_split(y, kind, seed, settings["validation"])
    model = estimator(iterations=settings["iterations"], **options).fit(
        x[fit],
        target[fit],
        eval_set=(x[held_out], target[held_out]),
        early_stopping_rounds=settings["early_stopping_rounds"],
    )
    notes = {"iterations": int(model.get_best_iteration()) + 1}
    # The step size is chosen from rows and iterations: that of the first fit is kept.
    options["learning_rate"] = model.get_all_params()["learning_rate"]
    model = estimator(iterations=notes["iterations"], **options).fit(x, target)
    if kind == "classification":
        return Outcome(model.predict_proba(x_test), notes)
    mean, variance = model.predict(x_test, prediction_type="RMSEWithUncertainty").T
    mean, std = y.mean() + y.std() * mean, y.std() * np.sqrt(variance)
    return Outcome(GaussianMixture.single(mean, std), notes)


def gp(x, y, x_test, kind: str, seed: int) -> Outcome:
    from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    settings = SETTINGS["gp"]
    most = settings["max_rows" if kind == "regression" else "max_rows_classes"]
    chosen = np.random.default_rng(seed).permutation(len(y))[:most]
    notes = {"rows": len(chosen)}
    x, x_test = standardised(x, x), standardised(x_test, x)
    columns = x.shape[1]
    scales = np.ones(columns) if columns <= settings["max_ard_columns"] else 1.0
    kernel = ConstantKernel(1.0, (1e-3, 1e4)) * RBF(scales, (1e-2, 1e4))
    options = {"n_restarts_optimizer": settings["n_restarts_optimizer"], "random_state": seed}
    if kind == "classification":
        classifier = GaussianProcessClassifier(kernel, **options).fit(x[chosen], y[chosen])
        return Outcome(classifier.predict_proba(x_test), notes)
    kernel = kernel + WhiteKernel(0.1, (1e-8, 1e1))
    model = GaussianProcessRegressor(kernel, normalize_y=True, **options).fit(x[chosen], y[chosen])
    mean, std = model.predict(x_test, return_std=True)
    return Outcome(GaussianMixture.single(mean, std), notes | {"kernel": str(model.kernel_)})


def quantile_forest(x, y, x_test, kind: str, seed: int) -> Outcome:
    from quantile_forest import RandomForestQuantileRegressor

    settings = SETTINGS["quantile-forest"]
    number = settings["quantiles"]
    model = RandomForestQuantileRegressor(
        n_estimators=settings["n_estimators"], random_state=seed, n_jobs=1
    ).fit(x, y)
    levels = ((np.arange(number) + 0.5) / number).tolist()

    def predicted(x, **options) -> tuple[np.ndarray, np.ndarray]:
        mean = model.predict(x, quantiles="mean", **options)
        return model.predict(x, quantiles=levels, **options).T, mean

    values, mean = predicted(x, oob_score=True)
    error = float(np.sqrt(np.nanmean((y - mean) ** 2)))
    widths = settings["bandwidths"]
    found = [
        float(np.nanmean(Quantiles(values, mean, width, 0.1 * error).log_prob(y)))
        for width in widths
    ]
    bandwidth = widths[int(np.argmax(found))]
    notes = {"out_of_bag_rmse": error, "bandwidth": bandwidth}
    return Outcome(Quantiles(*predicted(x_test), bandwidth, 0.1 * error), notes)


def random_forest(x, y, x_test, kind: str, seed: int) -> Outcome:
    from sklearn.ensemble import RandomForestClassifier

    trees = SETTINGS["random-forest"]["n_estimators"]
    model = RandomForestClassifier(trees, random_state=seed, n_jobs=1).fit(x, y)
    probs = model.predict_proba(x_test)
    return Outcome((trees * probs + 1 / probs.shape[1]) / (trees + 1), {})


def logistic_regression(x, y, x_test, kind: str, seed: int) -> Outcome:
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.model_selection import StratifiedKFold

    settings = SETTINGS["logistic-regression"]
    model = LogisticRegressionCV(
        Cs=settings["Cs"],
        cv=StratifiedKFold(settings["folds"], shuffle=True, random_state=seed),
        scoring=settings["scoring"],
        max_iter=2000,
    ).fit(standardised(x, x), y)
    notes = {"C": np.unique(model.C_).tolist()}
    return Outcome(model.predict_proba(standardised(x_test, x)), notes)
