"""Calibration: does it hold what it says, what does it change, and are the likelihoods SciPy's?

    python benchmarks/calibration.py simulate [--draws 1000]
    python benchmarks/calibration.py tables [--data DIR]
    python benchmarks/calibration.py scipy

Each prints a table in Markdown; they are in calibration.md. `simulate` draws calibration rows and
one new row a thousand times, so that the error of a fraction is binomial. `tables` fits a method
once, to 60 % of the rows, calibrates on 20 % and scores on the rest. Nothing is tuned.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from pathlib import Path

import numpy as np

import bayeslearn as bl
from bayeslearn.predictive_base import PredictiveBase
from bayeslearn.results.calibration import fit_calibrator
from bayeslearn.results.cross_conformal import CrossConformalPredictive

LEVELS = (0.5, 0.8, 0.9)
ROWS, FEW = 60, 40  # of a calibration, and of a table that is refitted
MAX_ROWS = 2000  # of a table
TESTS = Path(__file__).parents[1] / "tests"
FITS = {"method": "map", "hidden": (20,), "num_steps": 1000, "random_state": 0}


class Part(PredictiveBase):
    """Gaussian predictions, or class probabilities, of some rows."""

    num_samples, is_discrete = 1, False

    def __init__(self, mean, std=None):
        self.kind = "classification" if std is None else "regression"
        self._mean, self._std, self.num_rows = mean, std, len(mean)

    mean = property(lambda self: self._mean)
    probs = property(lambda self: self._mean)
    epistemic = property(lambda self: 0.0 * self._mean)
    aleatoric = property(lambda self: self._std**2)

    def align_y(self, y):
        return np.asarray(y)

    covariance = log_prob = log_prob_by_draw = quantiles = cdfs = sample = None


# Simulations


def noisy(rng, shape):
    """y with a noise that grows with x, up to five times what the model has."""
    x = rng.normal(size=shape)
    return x, np.sin(2 * x) + 1.5 * (0.4 + 0.6 * np.abs(x)) * rng.normal(size=x.shape)


def labels_of(rng, number):
    x = rng.normal(size=(number, 4))
    logits = x + rng.gumbel(size=x.shape)
    return x, logits.argmax(axis=1)


def covered_by_split(draws: int, columns: int, by_group: bool):
    """Whether the new row is inside, before and after: (draws, levels), and its group."""
    rng = np.random.default_rng(0)
    x, y = noisy(rng, (200, columns))
    model = bl.Model(bl.networks.MLP([]), bl.likelihoods.Gaussian(noise_scale=0.6))
    posterior = bl.fit(model, "map", (x, y), seed=0)
    x, y = noisy(rng, (draws, ROWS + 1, columns))
    pool = posterior.predict(x.reshape(-1, columns))
    mean, std = (part.reshape(x.shape) for part in (pool.mean, pool.std))
    group = (np.abs(x[..., 0]) > 0.674).astype(int)
    before, after = np.empty((2, draws, len(LEVELS)), bool)
    for i in range(draws):
        calibrator = fit_calibrator(
            Part(mean[i, :-1], std[i, :-1]),
            y[i, :-1],
            joint=columns > 1,
            groups=group[i, :-1] if by_group else None,
        )
        new = calibrator.apply(Part(mean[i, -1:], std[i, -1:]), group[i, -1:] if by_group else None)
        z = np.abs(y[i, -1] - mean[i, -1]) / std[i, -1]
        for j, level in enumerate(LEVELS):
            low, high = new.interval(level)
            after[i, j] = np.all((low[0] <= y[i, -1]) & (y[i, -1] <= high[0]))
            before[i, j] = np.all(z <= math.sqrt(2.0) * _erfinv(level))
    return before, after, group[:, -1]


def _erfinv(level: float) -> float:
    from scipy.special import erfinv

    return float(erfinv(level))


def covered_by_sets(draws: int):
    rng = np.random.default_rng(0)
    x, y = labels_of(rng, 30)
    posterior = bl.fit(
        bl.Model(bl.networks.MLP([20]), bl.likelihoods.Categorical()), "map", (x, y), seed=0
    )
    x, y = labels_of(rng, draws * (ROWS + 1))
    probs = posterior.predict(x).probs.reshape(draws, ROWS + 1, 4)
    y = y.reshape(draws, ROWS + 1)
    before, after = np.empty((2, draws, len(LEVELS)), bool)
    for i in range(draws):
        old, new = Part(probs[i, :-1]), Part(probs[i, -1:])
        calibrated = fit_calibrator(old, y[i, :-1], seed=i).apply(new)
        for j, level in enumerate(LEVELS):
            for found, one in ((before, new), (after, calibrated)):
                sets = one.prediction_set(level, seed=i, allow_empty=True)
                found[i, j] = sets[0, y[i, -1]]
    return before, after


def ridge(x, y, x_new, noise):
    """Bayesian linear regression with a N(0, 1) prior and a known noise."""
    prec = np.eye(x.shape[1]) + x.T @ x / noise**2
    mean = np.linalg.solve(prec, x.T @ y) / noise**2
    variance = np.sum(x_new * np.linalg.solve(prec, x_new.T).T, axis=1)
    return Part(x_new @ mean, np.sqrt(variance + noise**2))


def covered_by_folds(draws: int, folds: int):
    """CV+ or jackknife+ of an exact model with half the noise, refitted to every table."""
    rng = np.random.default_rng(0)
    before, after = np.empty((2, draws, len(LEVELS)), bool)
    for i in range(draws):
        x = rng.normal(size=(FEW + 1, 3))
        y = x @ [1.0, -1.0, 0.5] + rng.normal(size=FEW + 1)
        fold = np.arange(FEW) % folds
        scores, parts = np.empty((FEW, 1)), []
        for k in range(folds):
            own = np.flatnonzero(fold == k)
            rest = np.flatnonzero(fold != k)
            outside = ridge(x[rest], y[rest], x[own], 0.5)
            scores[own, 0] = np.abs(y[own] - outside.mean) / outside.std
            parts.append(ridge(x[rest], y[rest], x[FEW:], 0.5))
        inner = ridge(x[:FEW], y[:FEW], x[FEW:], 0.5)
        new = CrossConformalPredictive(inner, parts, fold, scores, np.ones(FEW))
        z = np.abs(y[FEW] - inner.mean[0]) / inner.std[0]
        for j, level in enumerate(LEVELS):
            low, high = new.interval(level)
            after[i, j] = low[0] <= y[FEW] <= high[0]
            before[i, j] = z <= math.sqrt(2.0) * _erfinv(level)
    return before, after


def simulate(draws: int) -> None:
    exact = [math.ceil((ROWS + 1) * level - 1e-9) / (ROWS + 1) for level in LEVELS]
    at_least = [f"≥ {level:g}" for level in LEVELS]
    print("| what | level | before | after | theory | binomial error |")
    print("|---|---|---|---|---|---|")

    def lines(name, before, after, theory):
        for j, level in enumerate(LEVELS):
            wanted = theory[j]
            p = wanted if isinstance(wanted, float) else level
            error = math.sqrt(p * (1 - p) / len(after))
            shown = f"{wanted:.3f}" if isinstance(wanted, float) else wanted
            print(
                f"| {name} | {level:g} | {before[:, j].mean():.3f} | {after[:, j].mean():.3f} |"
                f" {shown} | {error:.3f} |"
            )

    before, after, _ = covered_by_split(draws, 1, by_group=False)
    lines("split conformal", before, after, exact)
    before, after, group = covered_by_split(draws, 1, by_group=True)
    for k, name in enumerate(("middle", "outside")):
        lines(f"by group, {name}", before[group == k], after[group == k], at_least)
    lines("three columns at once", *covered_by_split(draws, 3, by_group=False)[:2], exact)
    lines("prediction sets, four classes", *covered_by_sets(draws), exact)
    for folds, name, loss in ((5, "CV+", math.sqrt(2 / FEW)), (FEW, "jackknife+", 0.0)):
        theory = [f"≥ {max(0.0, 2 * level - 1 - loss):.2f}" for level in LEVELS]
        lines(name, *covered_by_folds(draws, folds), theory)


# Tables


def tables(data: Path | None, only: list[str] | None) -> None:
    from tables import OWN, SHARED, read

    names = only or [*OWN, *(SHARED if data is not None else ())]
    found = {"regression": [], "classification": []}
    for name in names:
        x, y, task = read(name, data)
        order = np.random.default_rng(0).permutation(len(y))[:MAX_ROWS]
        cuts = [int(0.6 * len(order)), int(0.8 * len(order))]
        parts = [(x[rows], y[rows]) for rows in np.split(order, cuts)]
        began = time.perf_counter()
        row = (of_numbers if task == "regression" else of_classes)(*parts)
        found[task].append((name, len(order), *row))
        print(f"{name}: {time.perf_counter() - began:.0f} s", row, file=sys.stderr)
    heads = {
        "regression": "90 % before | conformal | scale | isotonic | error | width | log-lik."
        " before | scale",
        "classification": "90 % sets before | conformal | error | size before | conformal | ECE"
        " before | temperature | log-lik. before | temperature",
    }
    for task, head in heads.items():
        print(f"\n| table | rows | {head} |\n|{'---|' * (head.count('|') + 3)}")
        for row in found[task]:
            print("| " + " | ".join(str(cell) for cell in row) + " |")


def of_numbers(train, aside, test):
    """Coverage, width and log-likelihood before and after."""
    fitted = bl.BayesianNNRegressor(**FITS).fit(*train)
    plain = fitted.predictive(test[0])
    inside, width, log_lik = [bl.metrics.coverage(plain, test[1])], 0.0, 0.0
    for method in ("conformal", "scale", "isotonic"):
        after = fitted.calibrate(*aside, method).predictive(test[0])
        inside.append(bl.metrics.coverage(after, test[1]))
        if method == "conformal":
            width = bl.metrics.interval_width(after) / bl.metrics.interval_width(plain)
        if method == "scale":
            log_lik = bl.metrics.log_likelihood(after, test[1])
    error = math.sqrt(0.09 / len(test[1]))
    return (
        *(f"{share:.3f}" for share in inside),
        *(f"{error:.3f}", f"× {width:.2f}"),
        *(f"{bl.metrics.log_likelihood(plain, test[1]):.3f}", f"{log_lik:.3f}"),
    )


def of_classes(train, aside, test):
    """Sets, ECE and log-likelihood before and after."""
    fitted = bl.BayesianNNClassifier(**FITS).fit(*train)
    y = fitted.observed(*test)
    plain = fitted.predictive(test[0])
    sets = fitted.predict_set(test[0]), fitted.calibrate(*aside).predict_set(test[0])
    warmer = fitted.calibrate(*aside, "temperature").predictive(test[0])
    covered = [np.mean(own[np.arange(len(y)), y]) for own in sets]
    scores = [
        f"{score(one, y):.3f}"
        for score in (bl.metrics.ece, bl.metrics.log_likelihood)
        for one in (plain, warmer)
    ]
    error = math.sqrt(0.09 / len(y))
    sizes = [f"{own.sum(axis=1).mean():.2f}" for own in sets]
    return *(f"{share:.3f}" for share in covered), f"{error:.3f}", *sizes, *scores


# Likelihoods


def beside_scipy() -> None:
    """Largest absolute differences of a mixture over six draws, five rows and two columns."""
    sys.path[:0] = [str(TESTS), str(TESTS / "models")]
    from scipy import special, stats
    from test_targets import DRAWS, KINDS, PAIRS, Case

    def normal(rng, shape):
        return rng.normal(size=shape)

    KINDS["gaussian"] = (
        *(bl.likelihoods.Gaussian(), "log_noise_scale", normal),
        lambda o, w: stats.norm(o, np.exp(w)),
    )
    KINDS["poisson"] = (
        *(bl.likelihoods.Poisson(), None, KINDS["negative-binomial"][2]),
        lambda o, w: stats.poisson(np.exp(o)),
    )
    pairs_of = [(name, columns) for name in ("gaussian", "poisson") for columns in (1, 2)]

    print("| likelihood | columns | log-density | mean | variance | distribution function |")
    print("|---|---|---|---|---|---|")
    for name, columns in [*pairs_of, *PAIRS]:
        case = Case(name, columns)
        predictive, dist = case.predictive, case.dist
        density = dist.logpmf if case.is_discrete else dist.logpdf
        log_prob = special.logsumexp(density(case.table).sum(axis=2), axis=0) - np.log(DRAWS)
        mean = dist.mean()
        variance = mean.var(axis=0, ddof=1) + dist.var().mean(axis=0)
        pairs = [
            (predictive.log_prob(case.y), log_prob),
            (predictive.mean, case.like_y(mean.mean(axis=0))),
            (predictive.variance, case.like_y(variance)),
            (predictive.cdf(case.y), case.like_y(dist.cdf(case.table).mean(axis=0))),
        ]
        differences = " | ".join(f"{np.max(np.abs(ours - theirs)):.0e}" for ours, theirs in pairs)
        print(f"| {name} | {columns} | {differences} |")
    print(f"| ordinal | 1 | {ordinal_difference():.0e} | | | |")


def ordinal_difference() -> float:
    """Of the log-probability, from SciPy's logistic distribution at the thresholds."""
    import jax
    import jax.numpy as jnp
    from scipy import stats

    from bayeslearn.precision import inside_double_precision

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 3)), np.array([0, 1, 2, 3, 1])
    network = bl.networks.MLP([], use_bias=False)
    model = bl.Model(network, bl.likelihoods.Ordinal(4), dtype="float64")
    target, params = model.bind((x, y), jax.random.key(0))
    weights, own = rng.normal(size=(6, 1, 3)), rng.normal(size=(6, 3))
    with inside_double_precision():
        network_draws = jax.tree.map(lambda _: jnp.asarray(weights), params["network"])
        draws = {"network": network_draws, "likelihood": {"thresholds": jnp.asarray(own)}}
        predictive = bl.Predictive(target, draws, target.data.x)
    place = np.concatenate([own[:, :1], own[:, :1] + np.cumsum(np.exp(own[:, 1:]), 1)], 1)
    location = np.einsum("soc,rc->sr", weights, x)
    below = stats.logistic.cdf(place[:, None] - location[..., None])
    padded = np.pad(below, ((0, 0), (0, 0), (1, 1)), constant_values=((0, 0), (0, 0), (0, 1)))
    wanted = np.log(np.diff(padded, axis=2).mean(axis=0)[np.arange(5), y])
    return float(np.max(np.abs(predictive.log_prob(y) - wanted)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("simulate").add_argument("--draws", type=int, default=1000)
    of_tables = commands.add_parser("tables")
    of_tables.add_argument("--data", type=Path)
    of_tables.add_argument("--tables", nargs="+")
    commands.add_parser("scipy")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.command == "simulate":
        simulate(options.draws)
    elif options.command == "tables":
        tables(options.data, options.tables)
    else:
        beside_scipy()


if __name__ == "__main__":
    main()
