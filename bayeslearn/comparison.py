"""Which method for this table? `compare(X, y)` tries several on the same rows and recommends one.

    comparison = bl.compare(X, y, budget="2m")
    print(comparison)                  # the table, and why
    comparison.recommended             # "hmc"

Rows are parted once into test rows and training rows, and the training rows into folds. Each split
fits every method on all folds but one; the fold left out tells how good the method is, and the
choice is made on those folds alone. The test rows are scored by the same fits, for the table: they
have no part in the choice, and no method is fitted a second time.

Choice: of the methods that are calibrated on the folds left out, the one with the highest
log-likelihood there; among those within one standard error of it (of the difference, row by row)
the best calibrated. Calibrated means, in regression, that 90 % intervals cover 85 to 95 % (or as
nearly 90 % as any method's do), in classification, that the calibration error is smaller than that
of the plain network, MAP, by at least one standard error: else the plain network it is. A sampler
whose chains tell different tales (R-hat of the predictions above 1.2) is not chosen: it would
predict otherwise under another seed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import numbers
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bayeslearn import checkpoints, distributed, metrics
from bayeslearn.algorithms import ALGORITHMS, MAP, Algorithm
from bayeslearn.batches import auto_batch_size
from bayeslearn.errors import BayesLearnError, Shown, check_whole, refuse
from bayeslearn.estimators import BayesianNNClassifier, BayesianNNRegressor
from bayeslearn.fitting import check_algorithm
from bayeslearn.posterior import MixingWarning
from bayeslearn.progress import Progress
from bayeslearn.tables import detect_task

DEFAULT = ("map", "mc-dropout", "hmc", "bayes-by-backprop", "vogn", "laplace")
LEAST_ROWS = 10
LEAST_FOLDS = 5
SCORED_ROWS = 256  # most test rows, and rows of a fold left out: the rest are learned from
LEVEL, TOLERANCE = 0.9, 0.05
MOST_RHAT = 1.2
RESAMPLES, SURE = 200, 0.84  # of rows, and the share of them that makes one standard error
SHIFT = 2.0  # standard deviations, up or down, of every column
LEAST_FOR_FITS = 0.4  # of a method's share of the budget; predictions take their part of it too
FOR_BASELINE = 0.25  # of the budget, if it needs that much
LEAST_RUNNING = 0.25  # of it for steps, however long compiling takes
OVERTIME = 1.25  # of the budget, after which a method is given up between two splits
PATIENT = 3.0  # times its time, after which a sampler still warming up is given up
GRADIENTS = {"hmc": 40, "nuts": 80, "metropolis-hastings": 1}  # of a sampler's step, about
LEAST_DRAWS = 100
WIDTH = 130  # of the table as text


COMPILING = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)


class _OutOfTime(BayesLearnError):
    """A method cannot be brought inside the budget."""


class _NotFinite(BayesLearnError):
    """A prediction is no number."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """What `compare` found.

    Attributes:
        task: "regression" or "classification".
        recommended: name of the method to use.
        recommendation: why, in two sentences.
        rows: one dict for each method; see `to_dict`.
        fitted: the estimators of the first split, by name.
        first_split: X_train, y_train, X_test, y_test; the last two are the test rows.
        settings, versions: what is needed to repeat it.
    """

    task: str
    recommended: str
    recommendation: str
    rows: list[dict[str, Any]]
    fitted: dict[str, Any]
    first_split: tuple[Any, Any, Any, Any]
    settings: dict[str, Any]
    versions: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """All but data and estimators, ready for JSON.

        `table` has for each method its `status` and the `reason` of a failure, `metrics` on the
        test rows and `seconds` of a fit, compiling included, as [mean, standard error] over
        splits, `validation` on the folds left out with standard errors over rows, by which the
        choice was made, `memory_mb` (arrays of the posterior and of the last state), `chosen`
        (what the budget made of its length), and whether it is on the `pareto` front: no other
        method has a higher log-likelihood in less time. What is not finite is None, as is the
        standard error of a single split.
        """
        return {
            "kind": "comparison",
            "task": self.task,
            "recommended": self.recommended,
            "recommendation": self.recommendation,
            "table": [dict(row) for row in self.rows],
            "settings": dict(self.settings),
            "versions": dict(self.versions),
        }

    def __rich__(self) -> Any:
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table

        names = METRICS[self.task]
        title = f"{self.task}, {self.settings['test_rows']} test rows, mean ± standard error"
        table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("method", no_wrap=True)
        for name in (*names, "seconds", "MB", "Pareto"):
            table.add_column(name.replace("_", " "), justify="right", no_wrap=True)
        for row in self.rows:
            is_chosen = row["method"] == self.recommended
            label = f"{row['method']} *" if is_chosen else row["method"]
            if row["status"] == "ok":
                told = [_shown(row["metrics"][name]) for name in names]
                memory = f"{row['memory_mb']:.2f}"
                told += [_shown(row["seconds"]), memory, "yes" if row["pareto"] else ""]
                table.add_row(label, *told, style="bold" if is_chosen else None)
            else:
                table.add_row(label, "failed")
        failed = [f"{row['method']}: {row['reason']}" for row in self.rows if row["reason"]]
        return Group(table, "", self.recommendation, *([""] if failed else []), *failed)

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=WIDTH, color_system=None)
        with console.capture() as capture:
            console.print(self, markup=False, highlight=False)
        return capture.get()

    __repr__ = __str__


ESTIMATORS = {"regression": BayesianNNRegressor, "classification": BayesianNNClassifier}
METRICS = {
    "regression": ("rmse", "log_likelihood", "coverage90", "crps", "ood_auroc"),
    "classification": ("accuracy", "log_likelihood", "ece", "brier", "ood_auroc"),
}


def compare(
    X: Any,
    y: Any,
    *,
    task: str = "auto",
    methods: str | Sequence[Any] = "default",
    budget: float | str | None = None,
    splits: int = 3,
    test_fraction: float = 0.2,
    seed: int = 0,
    progress: bool | None = None,
    devices: str | None = None,
    **options: Any,
) -> Comparison:
    """Try several methods on one table and recommend one.

    Args:
        X, y: rows of numbers and one target, arrays or data frames.
        task: "regression", "classification", or "auto": text, two numbers, or a count from 0 or 1
            in which nothing is missing or alone (up to 20) are classes.
        methods: "default" (a quick choice), "all", or a list of names and algorithms. "map", the
            plain network, is always among them.
        budget: seconds, or "90s", "2m", "1h", for everything, compiling included, shared out
            evenly among the methods in the order given; what one leaves goes to those after it.
            Each method's length is found in the first split and used in all. None: the methods'
            defaults.
        splits: how many fits of each method, each leaving out another fold of training rows.
        test_fraction: share of the rows kept for the table (256 rows at most).
        seed: a whole number; without a budget the same seed gives the same result.
        progress: show a progress bar; None: only on a terminal.
        devices: "all": every fit runs over all devices, see `fit`; of several processes each then
            compares alike, without a budget, and finds the same.
        options: of the estimators, such as `hidden` or `prior_scale`. `num_steps`, `batch_size`
            and `validation_fraction` reach the methods that know them.
    """
    began = time.perf_counter()
    check_whole("splits", splits, least=1)
    check_whole("seed", seed, least=0)
    if not isinstance(test_fraction, numbers.Real) or not 0 < test_fraction < 1:
        refuse("test_fraction", test_fraction, "be between 0 and 1")
    seconds = _seconds(budget)
    layout = distributed.layout(None, devices)
    if layout is not None and layout.is_shared and seconds is not None:
        refuse("budget", budget, "be left out over several processes, whose clocks differ")
    chosen = _methods(methods)
    table, told = _read(X, y, task)
    kind = ESTIMATORS[table.task]
    for name, value in options.items():
        if name in ("method", "random_state"):
            refuse(name, value, "be left out", "Use `methods` and `seed`.")
        if name not in kind._get_param_names():
            refuse(name, value, f"be left out: {kind.__name__} has no such option")
    plan = _plan(table, int(splits), float(test_fraction), int(seed))._replace(devices=devices)
    deadline = None if seconds is None else _Deadline(began, seconds)
    runs: dict[str, _Run] = {}
    pace = None
    with Progress("compare", len(chosen) * int(splits), progress) as bar:
        for place, (label, algorithm) in enumerate(chosen.items()):

            def told_of(split: int, label: str = label, place: int = place) -> None:
                bar.update(place * int(splits) + split, {}, name=f"compare: {label}")

            left = len(chosen) - place
            share, until = None, deadline
            if deadline is not None:
                scoring = int(splits) * max((run.scoring for run in runs.values()), default=0.0)
                even = deadline.left / left
                share = max(even - scoring, LEAST_FOR_FITS * even)
                if isinstance(algorithm, MAP):  # all others are measured by it, and it costs little
                    share, until = max(share, FOR_BASELINE * deadline.seconds), None
            run = _run(table, plan, algorithm, options, int(seed), share, until, pace, told_of)
            runs[label] = run
            if isinstance(algorithm, MAP) and pace is None and not run.reason:
                pace = _pace(run, len(plan.splits[0].train))
    good = {label: run for label, run in runs.items() if not run.reason}
    if not good:
        reasons = {run.reason for run in runs.values()}
        raise BayesLearnError(f"No method could be fitted: {' '.join(sorted(reasons))}")
    baseline = next(label for label, method in chosen.items() if isinstance(method, MAP))
    eligible = {label: run for label, run in good.items() if run.has_mixed} or good
    held_out = {label: run.held_out for label, run in eligible.items()}
    choice = _choose(table.task, held_out, baseline)
    rows = [_row(label, run) for label, run in runs.items()]
    _mark_front(rows)
    train = plan.splits[0].train
    return Comparison(
        task=table.task,
        recommended=choice.name,
        recommendation=_recommendation(table.task, choice, rows, baseline, len(plan.test)),
        rows=rows,
        fitted={label: run.estimator for label, run in good.items()},
        first_split=(*table.at(train), *table.at(plan.test)),
        settings=told
        | {
            "methods": list(chosen),
            "budget": seconds,
            "splits": int(splits),
            "test_fraction": float(test_fraction),
            "test_rows": len(plan.test),
            "train_rows": len(train),
            "validation_rows": len(plan.splits[0].left_out),
            "seed": int(seed),
            "options": {name: _plain(value) for name, value in options.items()},
            "seconds": time.perf_counter() - began,
        },
        versions=versions(),
    )


def versions() -> dict[str, Any]:
    """What ran it."""
    import sklearn

    return checkpoints.versions() | {"numpy": np.__version__, "scikit-learn": sklearn.__version__}


# What goes in


class _Table(NamedTuple):
    X: Any
    y: np.ndarray
    task: str
    classes: np.ndarray | None

    def at(self, rows: np.ndarray) -> tuple[Any, np.ndarray]:
        return (self.X.iloc[rows] if hasattr(self.X, "iloc") else self.X[rows]), self.y[rows]

    def like(self, values: np.ndarray) -> Any:
        """Other inputs, with the names of the columns."""
        if not hasattr(self.X, "iloc"):
            return values
        return type(self.X)(values, columns=self.X.columns)


def _read(X: Any, y: Any, task: str) -> tuple[_Table, dict[str, Any]]:
    from sklearn.utils.validation import check_array, column_or_1d

    values = check_array(X, dtype=np.float64, estimator="compare", input_name="X")
    names = [str(name) for name in X.columns] if hasattr(X, "columns") else None
    target = getattr(y, "name", None)
    if hasattr(y, "columns") and len(y.columns) == 1:
        target = y.columns[0]
    if np.ndim(y) > 1 and np.shape(y)[1] > 1:
        refuse("y", Shown(f"{np.shape(y)[1]} columns"), "be one column", "Compare one by one.")
    y = column_or_1d(y, warn=False)
    if len(y) != len(values):
        refuse("y", Shown(f"{len(y)} rows"), f"have as many rows as X ({len(values)})")
    if len(y) < LEAST_ROWS:
        refuse("X", Shown(f"{len(y)} rows"), f"have at least {LEAST_ROWS} rows")
    if task not in ("auto", *METRICS):
        refuse("task", task, 'be "auto", "regression" or "classification"')
    if task == "auto":
        task, _ = detect_task(y if y.dtype.kind in "iuf" else None, np.unique(y))
    if task == "regression":
        y = check_array(y, dtype=np.float64, ensure_2d=False, estimator="compare", input_name="y")
    labels = np.unique(y)
    if len(labels) < 2:
        refuse("y", Shown(f"only the value {labels[0]}"), "hold at least two values")
    told = {
        "rows": len(y),
        "columns": values.shape[1],
        "column_names": names,
        "target": None if target is None else str(target),
        "classes": None if task == "regression" else [_plain(label) for label in labels],
    }
    X = X if hasattr(X, "iloc") else values
    return _Table(X, y, task, None if task == "regression" else labels), told


def _methods(methods: Any) -> dict[str, Algorithm]:
    """Algorithms by label, as given; the baseline first, last what cannot be stopped on its way."""
    if isinstance(methods, str) and methods in ("default", "all"):
        methods = DEFAULT if methods == "default" else list(ALGORITHMS)
    if isinstance(methods, str) or not isinstance(methods, Sequence) or not len(methods):
        must = 'be "default", "all" or a list of names and algorithms'
        refuse("methods", methods, must)
    found = [check_algorithm(method, "methods") for method in methods]
    if not any(isinstance(method, MAP) for method in found):
        found.insert(0, MAP())
    found.sort(key=lambda m: (not isinstance(m, MAP), m.auto_steps == 1))
    labels: dict[str, Algorithm] = {}
    for method in found:
        same = sum(other.name == method.name for other in labels.values())
        labels[f"{method.name} ({same + 1})" if same else method.name] = method
    return labels


def _seconds(budget: Any) -> float | None:
    if budget is None:
        return None
    value: Any = budget
    if isinstance(budget, str):
        parts = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([smh]?)\s*", budget)
        value = parts and float(parts[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[parts[2]]
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        refuse("budget", budget, 'be a number of seconds, or such as "90s", "2m", "1h"')
    return float(value)


# Which rows


class _Split(NamedTuple):
    train: np.ndarray
    left_out: np.ndarray


class _Plan(NamedTuple):
    test: np.ndarray
    splits: list[_Split]
    outside: list[Any]  # inputs unlike the training rows
    devices: str | None = None


def _plan(table: _Table, splits: int, test_fraction: float, seed: int) -> _Plan:
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(table.y))
    if table.classes is not None:  # dealt out class by class, so that every part has its share
        order = order[np.argsort(table.y[order], kind="stable")]
    number = len(order)
    wanted = max(1, round(min(test_fraction * number, SCORED_ROWS)))
    if number - wanted < LEAST_FOLDS:
        refuse("test_fraction", test_fraction, f"leave at least {LEAST_FOLDS} rows to learn from")
    is_test = np.diff(np.floor(np.arange(number + 1) * wanted / number + 0.5)) > 0
    test, rest = order[is_test], order[~is_test]
    folds = max(LEAST_FOLDS, splits, math.ceil(len(rest) / SCORED_ROWS))
    if folds > len(rest):
        refuse("splits", splits, f"be at most the number of training rows ({len(rest)})")
    # Of one size, so that all splits share what was compiled; a remainder is always learned from.
    fold = np.arange(len(rest)) % folds
    fold[len(rest) // folds * folds :] = -1
    parts = [_Split(np.sort(rest[fold != k]), np.sort(rest[fold == k])) for k in range(splits)]
    test = np.sort(test)
    return _Plan(test, parts, _outside(table, test, rest, rng))


def _outside(table: _Table, test: np.ndarray, rest: np.ndarray, rng: Any) -> list[Any]:
    """The test rows with every column moved, and with every column shuffled for itself."""
    values = np.asarray(table.X, np.float64)
    signs = rng.choice([-1.0, 1.0], size=(len(test), values.shape[1]))
    shifted = values[test] + SHIFT * signs * values[rest].std(axis=0)
    shuffled = rng.permuted(values[test], axis=0)
    if values.shape[1] == 1:  # shuffled, they are the same rows
        return [table.like(shifted)]
    return [table.like(shifted), table.like(shuffled)]


# One method


class _Deadline(NamedTuple):
    began: float
    seconds: float

    @property
    def left(self) -> float:
        return self.began + self.seconds - time.perf_counter()

    @property
    def is_over(self) -> bool:
        return -self.left > (OVERTIME - 1) * self.seconds


class _HeldOut(NamedTuple):
    """What a method said of the training rows left out, in the order of the splits."""

    log_prob: np.ndarray
    is_right: np.ndarray  # inside the interval, or of the predicted class
    confidence: np.ndarray | None  # probability of the predicted class

    @property
    def log_likelihood(self) -> tuple[float, float]:
        return float(np.mean(self.log_prob)), _error_of(self.log_prob)

    def at(self, rows: np.ndarray) -> _HeldOut:
        return _HeldOut._make(None if part is None else part[rows] for part in self)

    @property
    def calibration(self) -> float:
        """Coverage, or expected calibration error."""
        if self.confidence is None:
            return float(np.mean(self.is_right))
        return metrics.gathered(self.confidence, self.is_right).error


@dataclasses.dataclass
class _Run:
    """Every split of one method, or why there are not."""

    reason: str = ""
    estimator: Any = None  # of the first split
    scores: list[dict[str, float]] = dataclasses.field(default_factory=list)
    parts: list[_HeldOut] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)
    compiling: float = 0.0
    scoring: float = 0.0  # seconds a split
    steps: int = 0  # of the first split
    megabytes: float = 0.0
    has_mixed: bool = True
    chosen: dict[str, int] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def held_out(self) -> _HeldOut:
        def joined(name: str) -> Any:
            parts = [getattr(part, name) for part in self.parts]
            return None if parts[0] is None else np.concatenate(parts)

        return _HeldOut(*map(joined, _HeldOut._fields))


class _Clock:
    """Told of every look at a run; ends it at its time, or at the step where another one ended."""

    def __init__(self, share: float | None, splits: int, warmup: int, stop_at: int | None):
        self._share, self._splits, self._warmup = share, splits, warmup
        self._stop_at = stop_at
        self._began = time.perf_counter()
        self._compiling: list[tuple[float, float]] = []  # from when to when
        self.step, self.was_stopped = 0, False

    def listen(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        if event in COMPILING:
            now = time.perf_counter()
            # Tracing nests: what lies inside this stretch was told of before.
            while self._compiling and self._compiling[-1][0] >= now - duration_secs:
                self._compiling.pop()
            self._compiling.append((now - duration_secs, now))

    @property
    def compiling(self) -> float:
        """Seconds, tracing included."""
        return sum(end - begin for begin, end in self._compiling)

    def __call__(self, told: Any) -> bool:
        self.step = told.step
        if self._stop_at is not None:
            return told.step >= self._stop_at
        if self._share is None:
            return False
        # Compiling is paid once, out of the same share; what it leaves is for all splits.
        limit = max(self._share - self.compiling, LEAST_RUNNING * self._share) / self._splits
        running = time.perf_counter() - self._began - self.compiling
        is_warming = told.step <= self._warmup
        if is_warming and running > max(PATIENT * limit, self._share):
            raise _OutOfTime(
                f"After {told.step} of {self._warmup} steps of warm-up its share of the budget,"
                f" {self._share:.3g} s, was spent."
            )
        self.was_stopped = running >= limit and not is_warming
        return self.was_stopped


@contextlib.contextmanager
def _listening(clock: _Clock) -> Iterator[None]:
    jax.monitoring.register_event_duration_secs_listener(clock.listen)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(clock.listen)


class _Pace(NamedTuple):
    """Of the baseline, by which the length of samplers is chosen."""

    gradient: float  # seconds for all rows
    compiling: float


def _pace(run: _Run, rows: int) -> _Pace:
    seconds = max(min(run.seconds[0] - run.compiling, *run.seconds), 1e-3)  # all but the compiling
    # The overhead of a step is worth a few small batches.
    batches = max(1.0, rows / (4 * auto_batch_size(rows)))
    return _Pace(seconds / max(run.steps, 1) * batches, run.compiling)


def _run(
    table: _Table,
    plan: _Plan,
    algorithm: Algorithm,
    options: dict[str, Any],
    seed: int,
    share: float | None,
    deadline: _Deadline | None,
    pace: _Pace | None,
    told: Callable[[int], None],
) -> _Run:
    run = _Run()
    splits = len(plan.splits)
    stop_at = None
    told(0)
    try:
        if share is not None and share <= 0:
            raise _OutOfTime("The budget was spent before its turn.")
        if share is not None and pace is not None and algorithm.is_sampler:
            algorithm = _shortened(algorithm, share, splits, pace)
        for number, split in enumerate(plan.splits):
            if number and deadline is not None and deadline.is_over:
                raise _OutOfTime(f"The budget ended after {number} of {splits} splits.")
            warmup = getattr(algorithm, "num_warmup", 0)
            estimator = _estimator(table.task, algorithm, options, seed + number)
            clock = _Clock(share, splits, warmup, stop_at)
            with _listening(clock), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                timer = time.perf_counter()
                X, y = table.at(split.train)
                estimator._fit(X, y, None, table.classes, callback=clock, devices=plan.devices)
                seconds = time.perf_counter() - timer
            run.notes += [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
            run.notes += estimator.posterior_.notes
            if any(issubclass(w.category, MixingWarning) for w in caught):
                rhat = estimator.posterior_.diagnostics().rhat_predictions
                run.has_mixed &= bool(np.nanmax(rhat) <= MOST_RHAT)
            run.seconds.append(seconds)
            run.compiling += clock.compiling
            if number == 0:
                run.estimator = estimator
                run.megabytes = _megabytes(estimator.posterior_)
                run.steps = clock.step
                stop_at = clock.step if clock.was_stopped else None
                run.chosen = _lengths(algorithm, clock) if share is not None else {}
            timer = time.perf_counter()
            run.parts.append(_held_out(estimator, *table.at(split.left_out)))
            run.scores.append(_scores(estimator, *table.at(plan.test), plan.outside))
            run.scoring = time.perf_counter() - timer  # of the last split: nothing is compiled then
            told(number + 1)
    except Exception as error:  # whatever it is, the other methods go on
        run.reason = _reason(error)
    run.notes = list(dict.fromkeys(run.notes))
    return run


def _estimator(task: str, algorithm: Algorithm, options: dict[str, Any], seed: int) -> Any:
    known = dict(options)
    if algorithm.is_sampler or algorithm.auto_steps == 1:
        known.pop("num_steps", None)
    if algorithm.is_sampler:
        known.pop("batch_size", None)
        known.pop("validation_fraction", None)
    return ESTIMATORS[task](method=algorithm, random_state=seed, **known)


def _shortened(algorithm: Any, share: float, splits: int, pace: _Pace) -> Any:
    """A sampler of about that many seconds, guessed from the baseline's pace.

    What the guess leaves over is cut off, or given up, when it runs.
    """
    limit = max(share - 2 * pace.compiling, share / 4) / splits
    lanes = 4 / min(4, os.cpu_count() or 1)
    steps = algorithm.num_warmup + algorithm.num_samples * algorithm.thin
    gradients = getattr(algorithm, "num_leapfrog", None) or GRADIENTS.get(algorithm.name, 40)
    step = pace.gradient * gradients * lanes
    least = 2 * LEAST_DRAWS * step
    if least > PATIENT * limit:
        raise _OutOfTime(
            f"A fit of {LEAST_DRAWS} steps of warm-up and {LEAST_DRAWS} draws would take about"
            f" {least:.2g} s, and its share of the budget allows {limit:.2g} s."
        )
    part = limit / (step * steps)
    if part >= 1:
        return algorithm
    counts = {
        name: min(
            getattr(algorithm, name), max(LEAST_DRAWS, round(part * getattr(algorithm, name)))
        )
        for name in ("num_warmup", "num_samples")
    }
    return dataclasses.replace(algorithm, **counts)


def _lengths(algorithm: Any, clock: _Clock) -> dict[str, int]:
    if not algorithm.is_sampler:
        return {"num_steps": clock.step} if algorithm.auto_steps > 1 else {}
    kept = (clock.step - algorithm.num_warmup) // algorithm.thin
    return {"num_warmup": algorithm.num_warmup, "num_samples": kept}


def _held_out(estimator: Any, X: Any, y: np.ndarray) -> _HeldOut:
    predictive, observed, unit = _predicted(estimator, X, y)
    log_prob = predictive.log_prob(observed) - np.log(unit)
    if not np.all(np.isfinite(log_prob)):
        raise _NotFinite("Its log-likelihood on training rows left out is not finite.")
    if predictive.kind == "classification":
        seen = predictive.like_mean(observed)
        probs = predictive.probs
        return _HeldOut(log_prob, probs.argmax(axis=1) == seen, probs.max(axis=1))
    return _HeldOut(log_prob, _is_inside(predictive, observed), None)


def _scores(estimator: Any, X: Any, y: np.ndarray, outside: list[Any]) -> dict[str, float]:
    predictive, observed, unit = _predicted(estimator, X, y)
    told = {"log_likelihood": metrics.log_likelihood(predictive, observed) - math.log(unit)}
    if predictive.kind == "regression":
        told["rmse"] = metrics.rmse(predictive, observed) * unit
        told["coverage90"] = float(np.mean(_is_inside(predictive, observed)))
        told["crps"] = metrics.crps(predictive, observed) * unit
    else:
        told["accuracy"] = metrics.accuracy(predictive, observed)
        told["ece"] = metrics.ece(predictive, observed)
        told["brier"] = metrics.brier(predictive, observed)
    others = (estimator._predictive(inputs) for inputs in outside)
    told["ood_auroc"] = float(np.mean([metrics.auroc(predictive, other) for other in others]))
    return told


def _is_inside(predictive: Any, observed: np.ndarray) -> np.ndarray:
    """Whether each row is in its central interval, without looking for the interval's ends."""
    return np.abs(predictive.cdf(observed).reshape(-1) - 0.5) <= LEVEL / 2


def _predicted(estimator: Any, X: Any, y: np.ndarray) -> tuple[Any, np.ndarray, float]:
    """The predictive, y as it sees it, and how large its unit is."""
    _, read = estimator._read(X, y, first=False)
    scaling = getattr(estimator, "y_scaling_", None)
    unit = 1.0 if scaling is None else float(scaling.scale[0])
    return estimator._predictive(X), estimator._to_network(read), unit


def _megabytes(posterior: Any) -> float:
    kept = jax.tree.leaves((posterior.family, posterior.state))
    return sum(getattr(leaf, "nbytes", 0) for leaf in kept) / 1e6


def _reason(error: Exception) -> str:
    """The first sentence of what went wrong."""
    told = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in told:
        return "It needs more memory than there is."
    first = re.split(r"(?<=[^.\s]\.) (?=[A-Z`])", told)[0]
    return first if isinstance(error, BayesLearnError) else f"{type(error).__name__}: {first}"


# The choice


class _Choice(NamedTuple):
    name: str
    held_out: _HeldOut
    calibrated: list[str]
    ties: list[str]  # of those, within one standard error of the best; the chosen one among them


def _is_less(part: _HeldOut, other: _HeldOut) -> bool:
    """Whether its calibration error is smaller by one standard error, over the same rows."""
    rng = np.random.default_rng(0)
    less = 0
    for _ in range(RESAMPLES):
        rows = rng.integers(0, len(part.is_right), len(part.is_right))
        less += part.at(rows).calibration < other.at(rows).calibration
    return less > SURE * RESAMPLES


def _choose(task: str, told: dict[str, _HeldOut], baseline: str) -> _Choice:
    """The rule at the head of this file; it sees the folds left out and nothing else."""
    if task == "regression":
        gap = {label: abs(part.calibration - LEVEL) for label, part in told.items()}
        most = max(TOLERANCE, min(gap.values()))
        calibrated = [label for label in told if gap[label] <= most]
    else:
        gap = {label: part.calibration for label, part in told.items()}
        plain = told.get(baseline)
        calibrated = [
            label
            for label, part in told.items()
            if plain is None or part is plain or _is_less(part, plain)
        ]
    best = max(calibrated, key=lambda label: told[label].log_likelihood[0])

    def is_tied(label: str) -> bool:
        difference = told[best].log_prob - told[label].log_prob
        return float(np.mean(difference)) <= _error_of(difference)

    ties = [label for label in calibrated if label == best or is_tied(label)]
    name = min(ties, key=lambda label: gap[label])
    return _Choice(name, told[name], calibrated, ties)


def _recommendation(
    task: str, choice: _Choice, rows: list[dict[str, Any]], baseline: str, test_rows: int
) -> str:
    by_name = {row["method"]: row for row in rows}
    mine, plain = by_name[choice.name], by_name[baseline]
    mean, error = choice.held_out.log_likelihood
    found = choice.held_out.calibration
    if task == "regression":
        calibrated, metric = f"90 % intervals that cover {100 * found:.0f} %", "coverage90"
    else:
        calibrated, metric = f"a calibration error of {found:.3f}", "ece"
    others = [label for label in choice.ties if label != choice.name]
    if others:
        rank = f"as high as any within one standard error ({', '.join(others)})"
        rank += ", and the best calibration of these"
    elif len(choice.calibrated) > 1:
        rank = f"the highest of the {len(choice.calibrated)} methods that are calibrated there"
    else:
        rank = "and no other method is calibrated as well there"
    first = (
        f"Use {choice.name}: on training rows left out it has {calibrated} and a log-likelihood of"
        f" {mean:.3f} ± {error:.3f} per row, {rank}."
    )

    def against(name: str, words: str, digits: int = 3, scale: float = 1.0) -> str:
        def value(row: dict[str, Any]) -> str:
            found = row["metrics"][name][0]
            return "not finite" if found is None else f"{scale * found:.{digits}f}"

        has_other = plain is not mine and plain["status"] == "ok"
        return f"{words} {value(mine)}" + (f" ({baseline}: {value(plain)})" if has_other else "")

    calibration = (
        against(metric, "coverage in %", 1, 100.0)
        if task == "regression"
        else against(metric, "calibration error")
    )
    second = (
        f"On the {test_rows} test rows, which had no part in this choice, the same fits have"
        f" {against('log_likelihood', 'log-likelihood')} and {calibration}, at"
        f" {mine['seconds'][0]:.2g} s a fit, compiling included."
    )
    return f"{first} {second}"


# What comes out


def _row(label: str, run: _Run) -> dict[str, Any]:
    row: dict[str, Any] = {
        "method": label,
        "status": "failed" if run.reason else "ok",
        "reason": run.reason or None,
        "metrics": {},
        "validation": {},
        "seconds": _mean_and_error(run.seconds) if run.seconds else [None, None],
        "compile_seconds": run.compiling,
        "memory_mb": None,
        "chosen": run.chosen,
        "notes": run.notes,
        "pareto": False,
    }
    if run.reason:
        return row
    held_out = run.held_out
    is_regression = held_out.confidence is None
    coverage_error = _error_of(held_out.is_right) if is_regression else None
    row["metrics"] = {
        name: _mean_and_error([score[name] for score in run.scores]) for name in run.scores[0]
    }
    row["validation"] = {
        "log_likelihood": list(held_out.log_likelihood),
        "coverage90" if is_regression else "ece": [held_out.calibration, coverage_error],
    }
    row["memory_mb"] = run.megabytes
    return row


def _mark_front(rows: list[dict[str, Any]]) -> None:
    good = [row for row in rows if row["status"] == "ok"]
    place = {}
    for row in good:
        quality = row["metrics"]["log_likelihood"][0]
        place[id(row)] = (-math.inf if quality is None else quality, -row["seconds"][0])
    for row in good:
        mine = place[id(row)]
        row["pareto"] = not any(
            other != mine and other[0] >= mine[0] and other[1] >= mine[1]
            for other in place.values()
        )


def _mean_and_error(values: Sequence[float]) -> list[float | None]:
    """None where there is no number: an error of one split, a score that is not finite."""
    if not np.all(np.isfinite(values)):
        return [None, None]
    return [float(np.mean(values)), _error_of(np.asarray(values)) if len(values) > 1 else None]


def _error_of(values: np.ndarray) -> float:
    """Standard error of the mean."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def _shown(pair: Sequence[float | None]) -> str:
    mean, error = pair
    if mean is None:
        return "not finite"
    if error is None:
        return f"{mean:.4g}"
    return f"{mean:.4g} ± {error if error > 1e-9 * abs(mean) else 0:.1g}"


def _plain(value: Any) -> Any:
    """Something JSON can hold."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
