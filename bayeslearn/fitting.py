"""The one training loop: `fit(model, algorithm, data, seed=0)` gives a `Posterior`.

All steps between two looks at the lower bound run in one compiled call, data stay on the device,
and step t's randomness is a function of the seed and t alone: the same seed gives the same bits
at any chunk size, with or without progress. Variational methods and MAP take `num_steps` and
`batch_size`; samplers carry their own counts and run several chains.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import time
import warnings
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bayeslearn import batches, checkpoints, distributed, tree
from bayeslearn.algorithms import ALGORITHMS, MAP, Algorithm
from bayeslearn.algorithms.joint import Joint
from bayeslearn.chains import Lanes, complete, draw
from bayeslearn.checkpoints import Keeper
from bayeslearn.courses import (
    NARROWEST,
    WIDEST,
    Course,
    Walk,
    joined,
    leaves_of_run,
    run_again,
    taken_draws,
)
from bayeslearn.distributed import Layout
from bayeslearn.errors import (
    ArgumentError,
    BayesLearnError,
    DataError,
    DataWarning,
    DivergenceError,
    Shown,
    StorageError,
    check_whole,
    refuse,
)
from bayeslearn.families import Point
from bayeslearn.model import Batch, Model, Target, check_data, check_like_training
from bayeslearn.posterior import Posterior
from bayeslearn.precision import double_precision, to_host, user_precision
from bayeslearn.priors import check_gaussian, check_given
from bayeslearn.progress import Progress
from bayeslearn.storage import NotSaved, describe_model
from bayeslearn.tree import Array, PyTree

EVALUATIONS = 100  # looks at the lower bound in a full-length run
BETWEEN = 10  # steps between them in a short one, which has at least as many looks: one costs steps
PATIENCE = 20  # evaluations without a new best before stopping
EVAL_DRAWS = 64
EVAL_BATCH = 16  # of those at a time
FRESH_LOOKS = 4  # of EVAL_DRAWS each, for the lower bound that is reported
EVAL_ROWS = 8192
CHUNK = 100  # steps per compiled call
SAMPLER_CHUNK = 50  # draws per compiled call; of cheap densities up to ten times as many
CHEAP = 1.5e6  # rows times weights
CHUNK_BYTES = 64e6
STARTS = 8  # initialisations that are tried where none is given
ROUNDS = ((1000, 4), (1000, 1))  # steps from each start still tried, and how many are kept
STIRRED = (4, 2, 2, 2)  # places tried around what the best start comes to, then around the best
WORTH = 0.01  # nats for each weight that a place must be better by, to be stirred in its turn
STIRRED_STEPS = 1000  # of the other method, and then of the method itself before one is chosen
MOST_WEIGHTS = 10_000  # of a network whose starts are tried unasked
MAX_BACK_OFFS = 10  # without calm in between, before a run is given up
ODD_SCALE = 1e4  # columns larger than this, or smaller than its inverse, are worth a warning
STRAYED = "had a q whose spread exploded or collapsed"
MAIN = "main"  # the phase of the method itself; those before it have names below


class Progressed(NamedTuple):
    """What a callback is told."""

    algorithm: str
    step: int
    num_steps: int
    metrics: dict[str, float]


@double_precision
def fit(
    model: Model | Target,
    algorithm: Algorithm | str,
    data: Any = None,
    *,
    seed: int,
    num_steps: int | str = "auto",
    batch_size: int | str = "auto",
    num_chains: int | None = None,
    num_data: int | None = None,
    validation: tuple[Any, Any] | None = None,
    eval_every: int | None = None,
    patience: int | str | None = "auto",
    params: PyTree | None = None,
    starts: int | str = "auto",
    progress: bool | None = None,
    callback: Callable[[Progressed], Any] | None = None,
    chunk_size: int | None = None,
    checkpoint: str | os.PathLike[str] | Keeper | None = None,
    every: int | str = checkpoints.EVERY,
    keep: int = checkpoints.KEEP,
    mesh: Mesh | None = None,
    devices: str | None = None,
    shard: str = "replicate",
    microbatch: int | None = None,
    remat: bool = False,
) -> Posterior:
    """Infer the posterior over a model's weights.

    Args:
        model: a `Model`, or a `Target` (a model already bound to data, or a bare log-density).
        algorithm: an algorithm such as `bl.VOGN()`, or its name.
        data: a pair (x, y) of arrays or data frames; or an iterable of batches (x, y), such as one
            of `bl.sources`, a loader of PyTorch, a `tf.data.Dataset` or a generator.
        seed: a whole number; the same seed gives the same result.
        num_steps: optimisation steps; "auto": up to 5000, fewer once the lower bound rests or an
            iterator ends, which is a `DataError` where a number was given.
        batch_size: rows per step; "auto": all rows up to 2048, else 256.
        num_chains: chains of a sampler (4 unless said), started apart from each other.
        num_data: size of the data set behind an iterable; unless said it is asked of the iterable
            or counted, for which it must be readable twice.
        validation: (x, y) held out; its log-likelihood then decides when to stop.
        eval_every: steps between looks at the lower bound; unless said one hundredth of the run,
            and at least ten in runs of a hundred steps or more.
        patience: evaluations without a new best before stopping (or, where step sizes fall over the
            run, before the rest of that fall is hastened); None: never. "auto": 20 if
            `num_steps` is "auto", else never.
        params: where to start, instead of the network's own initialisation. A Gaussian, such as
            another posterior's `family`, is also the first q of a variational method.
        starts: initialisations of the network from which mean field is tried for a short while;
            the one with the best lower bound is brought to rest, and the run goes on from there or
            from a better place that the noise of VOGN finds around it. "auto": eight for
            regression networks of up to 10,000 weights with hidden units, given as a `Model` with
            arrays; one for classes, where `num_steps` or `params` are given, for batches from an
            iterable, and for methods that do not begin with mean field (MAP, Laplace, VOGN,
            samplers).
        progress: show a progress bar; None: only on a terminal.
        callback: called with a `Progressed` at every evaluation; return True to stop.
        chunk_size: most steps per compiled call; changes nothing but the pace of progress.
        checkpoint: a folder in which the run is kept, so that `bl.resume` can go on with it. On
            SIGTERM and SIGINT a last checkpoint is written before the run leaves.
        every: steps between checkpoints, or a time such as "30s", "5m" or "1h".
        keep: how many of the last checkpoints are kept.
        mesh: a `jax.sharding.Mesh` over whose first axis rows are divided; results do not depend
            on it but for rounding. With several processes each calls `fit` alike, and all get
            the same posterior; arrays are given whole to each, an iterable gives each its own
            rows of every batch; a sampler's chains are divided among the processes.
        devices: "all": a mesh of all devices of all processes.
        shard: "replicate": the posterior's state is on every device; "weights": leaf by leaf
            along the mesh's last axis.
        microbatch: rows of a batch for which the network is evaluated at a time; gradients (and
            squares) are summed over them. It saves memory, and changes nothing but rounding.
        remat: keep only the results of matrix products for the gradient and compute the rest
            again, which saves memory too.
    """
    layout = distributed.layout(mesh, devices, shard)
    if isinstance(checkpoint, Keeper | None):
        keeper = checkpoint
    else:
        keeper = Keeper(checkpoint, every, keep, is_shared=_is_shared(layout))
    options = {
        "seed": seed,
        "num_steps": num_steps,
        "batch_size": batch_size,
        "num_chains": num_chains,
        "num_data": num_data,
        "eval_every": eval_every,
        "patience": patience,
        "starts": starts,
    }
    return _fit(
        model,
        check_algorithm(algorithm),
        data,
        options,
        validation=validation,
        params=params,
        progress=progress,
        callback=callback,
        chunk_size=chunk_size,
        keeper=keeper,
        layout=layout,
        microbatch=microbatch,
        remat=remat,
    )


@double_precision
def resume(
    path: str | os.PathLike[str],
    data: Any = None,
    *,
    model: Model | Target | None = None,
    network: Any = None,
    algorithm: Algorithm | None = None,
    params: PyTree | None = None,
    validation: tuple[Any, Any] | None = None,
    progress: bool | None = None,
    callback: Callable[[Progressed], Any] | bool | None = None,
    chunk_size: int | None = None,
    every: int | str | None = None,
    keep: int | None = None,
    mesh: Mesh | None = None,
    devices: str | None = None,
    shard: str = "replicate",
    microbatch: int | None = None,
    remat: bool = False,
) -> Posterior:
    """Go on with a run of `fit(..., checkpoint=path)` from its last sound checkpoint.

    The result has the bits of a run that was never cut. A run that had ended gives its result.

    Args:
        path: the folder.
        data: the same data as in the first run; others are refused. An iterable is read from its
            beginning up to where the run was, one of `bl.sources` from there on.
        model, network, algorithm, params: what cannot be written down as data, again: a `Target`,
            a network that is not one of `bl.networks`, an algorithm with an Optax object or a
            function in it. Left out, they are what they were.
        validation: the same held-out data, where there were any.
        callback: the callback, where there was one; False: go on without.
        progress, chunk_size: as in `fit`.
        every, keep: as in `fit`; as they were unless said.
        mesh, devices, shard, microbatch, remat: as in `fit`; they need not be as they were, and
            the result is the same but for rounding.
    """
    layout = distributed.layout(mesh, devices, shard)
    keeper = Keeper.reopen(path, every, keep, is_shared=_is_shared(layout))
    asked = keeper.asked
    if callback is None and asked["has_callback"]:
        refuse("callback", None, "be given again", "Write callback=False to go on without it.")
    if model is None:
        model = again = _model_again(asked["model"], network)
        if network is None:
            _check_rebuilt(again, data, keeper)
    elif network is not None:
        refuse("network", Shown("a network"), "be left out beside a model, which has its own")
    return _fit(
        model,
        check_algorithm(_again("algorithm", asked["algorithm"], algorithm)),
        data,
        asked["options"],
        validation=validation,
        params=_again("params", asked["params"], params),
        progress=progress,
        callback=None if callback is False else callback,
        chunk_size=chunk_size,
        keeper=keeper,
        layout=layout,
        microbatch=microbatch,
        remat=remat,
    )


def _is_shared(layout: Layout | None) -> bool:
    return layout is not None and layout.is_shared


def _again(name: str, stored: Any, given: Any) -> Any:
    """What was written down, or what is given again because it could not be."""
    if given is not None:
        return given
    missing = _first_not_saved(stored)
    if missing is not None:
        refuse(name, None, "be given again", f"{missing.what} cannot be written down as data.")
    return stored


def _first_not_saved(value: Any) -> NotSaved | None:
    if isinstance(value, NotSaved):
        return value
    if isinstance(value, dict):
        inside = list(value.values())
    elif isinstance(value, list | tuple):
        inside = list(value)
    elif dataclasses.is_dataclass(value):
        inside = [getattr(value, field.name) for field in dataclasses.fields(value)]
    else:
        return None
    return next((found for part in inside if (found := _first_not_saved(part))), None)


def _check_rebuilt(model: Model, data: Any, keeper: Keeper) -> None:
    """A network rebuilt from a file must have the weights it had, before any is made."""
    if not _is_pair(data) or batches.is_mapped(data):
        return
    x, y = check_data(data)
    try:
        likelihood, _ = model.likelihood.bind(y)
        start = jax.eval_shape(
            lambda key: {
                "network": model.network.init(
                    key, jax.tree.map(lambda leaf: leaf[0], x), likelihood.num_outputs
                ),
                "likelihood": likelihood.init(),
            },
            jax.random.key(0),
        )
        is_same = tree.size(start) == keeper.num_weights
    except BayesLearnError:
        raise
    except Exception as error:  # whatever a description of nonsense leads to
        raise StorageError(
            f"{keeper.folder} cannot be resumed: its model cannot be built"
            f" ({type(error).__name__})."
        ) from error
    if not is_same:
        raise StorageError(
            f"{keeper.folder} cannot be resumed: its model has {tree.size(start)} weights, and had"
            f" {keeper.num_weights}. Are these the same data?"
        )


def _model_again(stored: Any, network: Any) -> Model:
    if stored is None:
        refuse("model", None, "be given again", "A Target cannot be written down as data.")
    if not isinstance(stored, dict) or stored.keys() != {f.name for f in dataclasses.fields(Model)}:
        raise StorageError("The run cannot be resumed: what it says of its model makes no sense.")
    if network is not None:
        stored = stored | {"network": network}
    elif isinstance(stored["network"], NotSaved):
        what = f"{stored['network'].what}, cannot be written down as data."
        refuse("network", None, "be given again", what[0].upper() + what[1:])
    parts = {name: _again("model", value, None) for name, value in stored.items()}
    return Model(**parts)


def _fit(
    model: Any,
    algorithm: Algorithm,
    data: Any,
    options: dict[str, Any],
    *,
    validation: Any,
    params: Any,
    progress: bool | None,
    callback: Any,
    chunk_size: int | None,
    keeper: Keeper | None,
    layout: Layout | None,
    microbatch: int | None,
    remat: bool,
) -> Posterior:
    check_arguments(
        algorithm,
        **options,
        validation=validation,
        chunk_size=chunk_size,
        callback=callback,
        microbatch=microbatch,
    )
    batch_size, num_data = options["batch_size"], options["num_data"]
    began = time.perf_counter()
    root = jax.random.key(int(options["seed"]))
    with contextlib.nullcontext() if layout is None else distributed.on_host():
        target, start, stream = _bind(model, algorithm, data, options, root, layout)
    if stream is not None and _is_pair(data):  # a memory map, in batches of this size
        batch_size = "auto"
    given, first = params, None
    if params is not None and hasattr(params, "to_prior"):
        first, params = params, params.mean
    if params is not None:
        start = _check_start(params, start)
    if start is None:
        refuse("params", None, "be given to start from, for a Target that has no start of its own")
    _check_suits(algorithm, target, batch_size, stream, num_data, validation)
    held_out = None if validation is None else _held_out(target, validation)
    partly = model if isinstance(model, Model) and model.bayesian is not None else None
    if isinstance(algorithm, MAP):
        partly = None
    if partly is not None and stream is not None and not stream.restarts:
        refuse("data", Shown("an iterator"), "be readable twice, to train the other leaves first")
    algorithm.check(*((target, start) if partly is None else partly.hold(target, start)))
    starts = [start]
    if _tries_starts(algorithm, options, model, target, start, given, stream):
        number = STARTS if options["starts"] == "auto" else int(options["starts"])
        starts += [_another_start(target, start, root, i) for i in range(1, number)]
    rows = 1 if target.data is None else len(target.data.y)
    if batch_size == "auto":
        batch_size = batches.auto_batch_size(rows)
    elif int(batch_size) > rows:
        refuse("batch_size", batch_size, f"be at most the number of rows ({rows})")
    if microbatch is not None and stream is None and int(batch_size) % int(microbatch):
        refuse("microbatch", microbatch, f"divide the rows of a batch ({batch_size})")
    target = dataclasses.replace(target, microbatch=microbatch, remat=bool(remat))

    if isinstance(model, Model) and stream is None:
        _warn_of_data(target)
    if keeper is not None:
        asked = {
            "model": describe_model(model) if isinstance(model, Model) else None,
            "algorithm": algorithm,
            "options": options,
            "params": given,
            "has_callback": callback is not None,
        }
        keeper.enter(asked, _fingerprints(target, start, held_out))
        if stream is not None:
            # Processes may have other rows when the run goes on.
            stream.keep(target, keeper.position, compares=not _is_shared(layout))
    rows_at_home = target.data
    if layout is not None:
        target = layout.put(target.on(None)).on(layout.put_rows(target.data))
        held_out, root = layout.put_rows(held_out), layout.put(root)
        is_quiet = layout.is_shared and not distributed.is_first()
        progress = False if is_quiet else progress
    setting = _Setting(
        target=target,
        stream=stream,
        held_out=held_out,
        batch_size=int(batch_size),
        root=root,
        progress=progress,
        callback=callback,
        chunk_size=chunk_size,
        keeper=keeper,
        layout=layout,
        rows_at_home=rows_at_home,
    )
    with (
        distributed.translated(_is_shared(layout)),
        contextlib.nullcontext() if keeper is None else keeper.listening(),
        contextlib.nullcontext() if stream is None else contextlib.closing(stream),
    ):
        return _infer(setting, partly, algorithm, starts, first, options, began)


def _fingerprints(target: Target, start: PyTree, held_out: Batch | None) -> dict[str, Any]:
    """What tells the data and the model from others, for those who resume."""
    rest = dataclasses.replace(target, data=None)
    return {
        "data": None if target.data is None else checkpoints.fingerprint(target.data._asdict()),
        "validation": None if held_out is None else checkpoints.fingerprint(held_out._asdict()),
        "model": checkpoints.digest((rest, start)),
        "num_weights": tree.size(start),
    }


def _infer(
    setting: _Setting,
    partly: Model | None,
    algorithm: Algorithm,
    starts: list[PyTree],
    first: Any,
    options: dict[str, Any],
    began: float,
) -> Posterior:
    """The phases of a run: points, warm start, the method itself."""
    target, stream, keeper, start = setting.target, setting.stream, setting.keeper, starts[0]
    num_steps, num_chains, patience = (
        options[name] for name in ("num_steps", "num_chains", "patience")
    )
    if patience in (None, "auto"):
        patience = PATIENCE if patience == "auto" and num_steps == "auto" else None
    notes = []
    points_time = 0.0
    if partly is not None:
        setting, start, points_time = _train_points(setting, partly, start)
        starts = [start]
        if partly.points == "joint":
            algorithm = Joint(algorithm)
    warm = None
    steps = algorithm.auto_steps if num_steps == "auto" else int(num_steps)
    if algorithm.tries_starts and len(starts) > 1 and num_steps != "auto":
        tried = sum(tried for tried, _ in ROUNDS)  # they come before the steps asked for
        steps += tried if algorithm.stirrer() is None else STIRRED_STEPS
    if first is not None and algorithm.takes_q:
        warm = _Warm(first, target, 0.0)
    elif stream is None or stream.restarts:
        warm = _warm_start(setting, algorithm, starts, steps)
    elif algorithm.warm_start() is not None:
        notes.append("There was no warm start: the data iterator can be read only once.")
    if algorithm.is_sampler:
        run = _sample(setting, algorithm, start, warm, 4 if num_chains is None else int(num_chains))
    else:
        rest = None if patience is None else int(patience)
        run = _optimise(
            setting,
            algorithm,
            start,
            warm,
            steps,
            options["eval_every"],
            rest,
            may_end=num_steps == "auto",
        )
    target = dataclasses.replace(setting.at_home(run.target), microbatch=None, remat=False)
    run = run._replace(state=setting.home(run.state), target=target)
    if stream is not None:
        notes.extend(stream.notes)
    if stream is not None and stream.spoiled:
        notes.append(f"{stream.spoiled} batches held NaN or infinity and were skipped.")
    family = algorithm.approximation(run.target, run.state, run.draws)
    if isinstance(algorithm, Joint):
        algorithm, run = algorithm.inner, run._replace(state=run.state.inner)
    posterior = Posterior(
        target=run.target,
        algorithm=algorithm,
        family=to_host(family),
        state=run.state,
        trace=run.trace,
        elbo=run.elbo,
        stopped=run.stopped,
        notes=(*notes, *run.notes, *([] if keeper is None else keeper.told())),
        seed=int(options["seed"]),
        wall_time=time.perf_counter() - began if keeper is None else keeper.elapsed(),
        compile_time=run.compile_time + points_time + (0.0 if warm is None else warm.compile_time),
    )
    if algorithm.is_sampler:
        posterior.warn_if_not_mixed()
    return posterior


def _train_points(setting: _Setting, model: Model, start: PyTree) -> tuple[_Setting, PyTree, float]:
    """All leaves trained together, then those without a posterior held."""
    quiet = setting.before("points")
    first = MAP(learn_noise=False)
    run = _optimise(quiet, first, start, None, first.auto_steps, None, PATIENCE)
    q = first.approximation(run.target, run.state)
    target, start = model.hold(setting.target, q.mean)
    return setting._replace(target=target), start, run.compile_time


class _Warm(NamedTuple):
    """What a warm start leaves to the method after it."""

    q: Any
    target: Target  # with what was refreshed on the way
    compile_time: float
    state: Any = None  # of the method itself, to go on from
    done: int = 0  # steps of the method itself that led there


def _warm_start(
    setting: _Setting, algorithm: Algorithm, starts: list[PyTree], num_steps: int
) -> _Warm | None:
    """What an algorithm of so many steps begins with: the result of another, or its best start."""
    if algorithm.tries_starts and len(starts) > 1:
        return _best_start(setting, algorithm, starts, num_steps)
    before = algorithm.warm_start()
    if before is None:
        return None
    # With the randomness that it has on its own, so that this method goes on from its result.
    quiet = setting.before("warm start")._replace(root=setting.root)
    steps = before.auto_steps
    earlier = _warm_start(quiet, before, starts, steps)
    run = _optimise(quiet, before, starts[0], earlier, steps, None, PATIENCE)
    q = before.approximation(run.target, run.state)
    compile_time = run.compile_time + (0.0 if earlier is None else earlier.compile_time)
    return _Warm(q, run.target, compile_time)


def _best_start(
    setting: _Setting, algorithm: Algorithm, starts: list[PyTree], num_steps: int
) -> _Warm:
    """The first of its steps from every start; the best few go on, then the best (`_stirred`).

    A network's lower bound has many optima, which differ in the hidden units they use, and the
    first steps decide which one is found. All rounds run the same compiled steps.
    """
    other = algorithm.stirrer()
    first_steps = algorithm.over(num_steps if other is None else algorithm.auto_steps)
    done = 0
    settings = [setting.before(f"start {number}") for number in range(len(starts))]
    places: dict[int, _Warm | None] = dict.fromkeys(range(len(starts)))
    compile_time = 0.0
    failure = DivergenceError(
        f"{algorithm.name} found no start with a finite lower bound. Scale x and y to unit spread,"
        " or start elsewhere with `params=`."
    )
    for turn, (steps, kept) in enumerate(ROUNDS):
        bounds, done = {}, done + steps
        for number, place in places.items():
            here, start = settings[number], starts[number]
            try:
                if place is None:
                    place = _warm_start(here, algorithm, [start], num_steps)
                    compile_time += 0.0 if place is None else place.compile_time
                phase, root = f"{here.phase}.{turn}", _named(here.root, f"{turn}")
                here = here._replace(phase=phase, root=root)
                bound, place = _tried(here, first_steps, start, place, done)
            except DivergenceError as error:
                failure = error
                continue
            compile_time += place.compile_time
            if math.isfinite(bound):
                bounds[number], places[number] = bound, place._replace(compile_time=0.0)
        if not bounds:
            raise failure
        best = sorted(bounds, key=lambda number: -bounds[number])[:kept]
        places = {number: places[number] for number in best}
    found = places[best[0]]
    assert found is not None
    found = found._replace(compile_time=compile_time)
    if other is None:
        return found
    return _stirred(setting, algorithm, other, starts[best[0]], found, num_steps)


def _stirred(
    setting: _Setting,
    algorithm: Algorithm,
    other: Algorithm,
    start: PyTree,
    found: _Warm,
    num_steps: int,
) -> _Warm:
    """The best of what a start comes to and of places around it, after the first of its steps.

    Hidden units that mean field has given up stay so: nothing pulls at them any more. The noise of
    another method (`Algorithm.stirrer`) wakes some of them, and those that are worth it stay awake.
    From a place that is much better it is done again: there is often more to be found.
    """
    steps, first_steps = algorithm.auto_steps, algorithm.over(num_steps)
    run = _optimise(setting.before("settled"), algorithm, start, found, steps, None, PATIENCE)
    place = _Warm(algorithm.approximation(run.target, run.state), run.target, 0.0)
    bound, best = _tried(setting.before("place 0"), first_steps, start, place, STIRRED_STEPS)
    compile_time = found.compile_time + run.compile_time + best.compile_time
    worth = max(1.0, WORTH * tree.size(start))
    prior, numbers = setting.target.prior, itertools.count(1)
    may_stir = not other.needs_gaussian_prior or prior is None or prior.is_gaussian
    for tries in STIRRED if may_stir else ():
        before = bound
        for number in itertools.islice(numbers, tries):
            here = setting.before(f"stirred {number}")
            try:
                run = _optimise(here, other, start, place, STIRRED_STEPS, None, None)
                compile_time += run.compile_time
                moved = _Warm(other.approximation(run.target, run.state), run.target, 0.0)
                here = setting.before(f"place {number}")
                now, tried = _tried(here, first_steps, start, moved, STIRRED_STEPS)
            except DivergenceError:
                continue
            compile_time += tried.compile_time
            if now > bound or math.isnan(bound):
                bound, best = now, tried
        if not bound > before + worth:
            break
        place = _Warm(best.q, best.target, 0.0)
    return best._replace(compile_time=compile_time)


def _tried(
    setting: _Setting, algorithm: Algorithm, start: PyTree, place: _Warm | None, num_steps: int
) -> tuple[float, _Warm]:
    """A place after so many steps of the method in all: its lower bound, and where it is now."""
    eval_every = max(1, algorithm.auto_steps // EVALUATIONS)
    run = _optimise(setting, algorithm, start, place, num_steps, eval_every, None)
    q = algorithm.approximation(run.target, run.state)
    bound = _fresh_bound(setting, algorithm, run.target, run.state)
    return bound, _Warm(q, run.target, run.compile_time, run.state, num_steps)


def _begin(
    target: Target,
    algorithm: Algorithm,
    start: PyTree,
    warm: _Warm | None,
    key: Array,
    layout: Layout | None = None,
):
    """The first state: from the warm start if there was one, else from the network."""
    if warm is None:
        return _init(algorithm, key, target, start, layout=layout)
    if warm.state is not None:
        return warm.state
    return _init_from(algorithm, key, target, warm.q, layout=layout)


class _Setting(NamedTuple):
    """What does not change during a run."""

    target: Target
    stream: batches.Stream | None
    held_out: Batch | None
    batch_size: int
    root: Array
    progress: bool | None
    callback: Callable[[Progressed], Any] | None
    chunk_size: int | None
    keeper: Keeper | None = None
    phase: str = MAIN
    layout: Layout | None = None
    rows_at_home: Batch | None = None  # of the target, where they were before they were divided

    def before(self, name: str) -> _Setting:
        """The setting of a phase before this one, with randomness of its own."""
        phase, root = f"{self.phase}/{name}", _named(self.root, name)
        return self._replace(root=root, phase=phase, callback=None, held_out=None)

    def most(self, length: int) -> int:
        """Steps per compiled call, at most `length`."""
        most = min(self.chunk_size or length, length)
        steps = None if self.keeper is None else self.keeper.most_steps
        return most if steps is None else min(most, steps)

    def look(self, place: Any) -> None:
        """An occasion for a checkpoint."""
        if self.keeper is not None:
            self.keeper.look(self.phase, place.now, place, self.position)

    def home(self, values: Any) -> Any:
        """Whole arrays, as if there were no mesh."""
        return values if self.layout is None else distributed.home(values)

    def at_home(self, target: Target) -> Target:
        if self.layout is None:
            return target
        return self.home(target.on(None)).on(self.rows_at_home)

    def any_asks(self, is_asked: Any) -> bool:
        """Whether a callback asks to stop, on any process."""
        if not _is_shared(self.layout):
            return bool(is_asked)
        return distributed.any_process(bool(is_asked))[0]

    @property
    def position(self) -> batches.Position | None:
        return None if self.stream is None else self.stream.position

    def kept(self, place: Any) -> Any:
        """Around the user's own code, which may throw."""
        if self.keeper is None:
            return contextlib.nullcontext()
        return self.keeper.kept(self.phase, place.now, place)


class _Run(NamedTuple):
    state: Any
    target: Target  # with what was refreshed on the way
    draws: PyTree | None
    trace: dict[str, np.ndarray]
    elbo: float | None
    stopped: str
    notes: list[str]
    compile_time: float


def _optimise(
    setting: _Setting,
    algorithm: Algorithm,
    start: PyTree,
    warm: _Warm | None,
    num_steps: int,
    eval_every: int | None,
    patience: int | None,
    *,
    may_end: bool = True,
) -> _Run:
    """Steps in rounds of `eval_every`; after each the lower bound is measured.

    `num_steps` counts those that a warm start of the same algorithm has done. A stream of batches
    that ends before all steps are done ends them, if it `may_end`.
    """
    base, done = (setting.target, 0) if warm is None else (warm.target, warm.done)
    root, layout = setting.root, setting.layout
    num_steps -= done
    fewest = min(BETWEEN, num_steps // BETWEEN)
    eval_every = min(num_steps, eval_every or max(1, fewest, num_steps // EVALUATIONS))
    # A fixed length, so that runs of other lengths do not compile again.
    length = CHUNK if setting.stream is None else setting.stream.length(base)
    most = setting.most(length)
    key_step, key_data, key_looks = (_named(root, name) for name in ("step", "data", "evaluate"))
    eval_data = None if base.data is None else batches.sample_rows(base.data, EVAL_ROWS)
    if layout is not None:
        eval_data = layout.put_rows(eval_data)

    def begin() -> Any:
        return _begin(base, algorithm, start, warm, _named(root, "init"), layout)

    timer = time.perf_counter()
    keeper, left = setting.keeper, None
    if keeper is not None:
        if (finished := keeper.finished(setting.phase)) is not None:
            state, target = run_again(finished, jax.eval_shape(begin), base)
            state = state if layout is None else layout.put_state(state)
            return _Run(state, target, None, {}, None, "", [], 0.0)
        left = keeper.left(setting.phase)
    if left is None:
        state = begin()
        _check_finite_start(base, state, start)
        run = Course(state, base, patience, num_steps)
        run.stopped = f"All {num_steps} steps were done."
    else:
        place = None if layout is None else layout.put_state
        run = Course.from_record(left, jax.eval_shape(begin), base, patience, num_steps, place)
    advance = partial(_advance, key_step=key_step, key_data=key_data, length=length, layout=layout)
    # A call of no steps compiles the loop, so that compile and run time can be told apart.
    rows = setting.batch_size if setting.stream is None else None
    if setting.stream is None:
        advance(
            algorithm,
            target=run.target,
            state=run.state,
            begin=0,
            count=0,
            batch_size=rows,
            stream=None,
        )
    compile_time = time.perf_counter() - timer

    best, num_data = run.best, float(base.num_data)
    with Progress(algorithm.name, num_steps, setting.progress) as bar:
        while run.step < run.length and not run.ended:
            goal = min(run.length, run.step + eval_every)
            failed = False
            while run.at < goal and not run.ended:
                setting.look(run)
                count, stream = min(most, goal - run.at), None
                if setting.stream is not None:
                    coming = batches.coming(run.at, goal, run.length, eval_every, most)
                    with setting.kept(run):
                        stream, count = setting.stream.chunk(run.target, coming, length)
                        if _is_shared(layout):  # it ends where the first of the processes' ends
                            count = int(np.min(distributed.gather(count)))
                        if count == 0 and not may_end:
                            raise DataError(
                                f"The data iterator ended after {run.at} of {num_steps} steps. Give"
                                ' more batches, or num_steps="auto" to end where they do.'
                            )
                    if count == 0:
                        run.ended = True
                        break
                run.state, info, num_bad, finite = advance(
                    _shortened(algorithm.over(done + run.length), run.scale),
                    target=run.target,
                    state=run.state,
                    begin=run.at,
                    count=count,
                    batch_size=rows,
                    stream=stream,
                )
                for name, values in info.items():
                    run.infos.setdefault(name, []).append(np.asarray(values)[:count])
                run.at, run.bad = run.at + count, run.bad + int(num_bad)
                failed = not bool(finite) or run.bad > eval_every // 2
                if failed:
                    break
            if failed:
                run.back_off()
                _check_goes_on(algorithm, run, "met non-finite numbers")
                continue
            if run.at == run.step:
                run.stopped = f"The data iterator ended after {run.step} steps."
                break
            before = run.good, run.target, run.step
            run.go_on()
            step = run.step
            # New draws at every look: luck then averages out over the window.
            key_eval = jax.random.fold_in(key_looks, step)
            if run.target.refreshes:
                key_refresh = jax.random.fold_in(key_eval, 1)
                run.target = _refresh(algorithm, run.target, run.state, key_refresh)
            eval_target = run.target.on(eval_data)
            told = _evaluate(algorithm, eval_target, run.state, key_eval, setting.held_out)
            metrics = {name: float(value) for name, value in told.items()}
            acted = {"skipped": run.skipped, "back_offs": run.back_offs}
            for name, value in ({"step": step} | metrics | acted).items():
                run.trace.setdefault("eval_" + name, []).append(value)
            bar.update(step, metrics | {name: n for name, n in acted.items() if n})
            error = metrics.pop("error")
            bound = metrics.get("elbo", metrics.get("log_joint", metrics["objective"]))
            can_shorten = hasattr(algorithm, "learning_rate")
            strays = can_shorten and run.may_stray(bound, metrics.get("kl", 0.0))
            strays = strays and bool(_strays(algorithm, eval_target, run.state))
            seen = before if strays else (run.state, run.target, step)
            if strays and best.state is not None:
                pass  # what is given up says nothing of the state it goes back to
            elif not best.see(metrics["objective"], error, *seen):
                rested = (
                    f"The objective's moving average had no new best for {best.patience}"
                    f" evaluations, after step {step}; "
                )
                if algorithm.falls:
                    run.hasten(eval_every)
                    run.stopped = f"{rested}its step size then fell to nothing by {run.length}."
                else:
                    run.stopped = f"{rested}the iterate of step {best.step} is returned."
                    run.ended = True
            elif run.ended:
                run.stopped = f"The data iterator ended after {step} steps."
            if strays:
                run.stray(*before[:2])
                _check_goes_on(algorithm, run, STRAYED)
            elif can_shorten and not run.ended and run.sinks(bound, error, num_data):
                run.back_off(is_sunk=True)
                _check_goes_on(algorithm, run, "lost its lower bound")
            if setting.callback is not None:
                with setting.kept(run):
                    is_asked = setting.callback(
                        Progressed(algorithm.name, step, num_steps, metrics)
                    )
                if setting.any_asks(is_asked):
                    run.stopped, run.ended = f"The callback stopped it at step {step}.", True
    if run.step == 0:
        raise ArgumentError("`data` must give at least one batch, got an iterator that is empty.")

    if best.step == 0:  # every look has strayed
        _give_up(algorithm, run, STRAYED)
    notes = algorithm.remarks(best.target, start)
    if run.skipped:
        notes.append(f"{run.skipped} steps met non-finite numbers and were skipped.")
    if run.back_offs:
        reasons = {
            f"the lower bound was lost for long ({run.sunk})": run.sunk,
            f"the spread of q exploded or collapsed ({run.strayed})": run.strayed,
        }
        why = " or ".join(
            [*(told for told, number in reasons.items() if number), "numbers were not finite"]
        )
        if not (run.sunk or run.strayed):
            why = "non-finite numbers"
        notes.append(
            f"The step size was halved {run.back_offs} time(s) after {why}; the run"
            f" ended at {run.scale:g} of the learning rate asked for."
        )
    target = algorithm.settled(best.target, best.state)
    if setting.phase != MAIN:
        if keeper is not None:
            left = leaves_of_run(*setting.home((best.state, target.on(None))))
            keeper.finish(setting.phase, left, setting.position)
        return _Run(best.state, target, None, {}, None, run.stopped, notes, compile_time)
    elbo = None
    if algorithm.has_lower_bound:
        elbo = _fresh_bound(setting, algorithm, best.target, best.state)
    pieces = [run.piece()]
    if keeper is not None:
        run.ended = True
        keeper.write(setting.phase, run.step, run)
        pieces = [*keeper.pieces(), run.piece()]
    trace = joined(pieces, 0)
    return _Run(best.state, target, None, trace, elbo, run.stopped, notes, compile_time)


def _fresh_bound(setting: _Setting, algorithm: Algorithm, target: Target, state: Any) -> float:
    """The lower bound from draws that had no part in any choice."""
    if target.data is not None:
        target = target.on(batches.sample_rows(target.data, EVAL_ROWS))
    keys = jax.random.split(_named(setting.root, "fresh"), FRESH_LOOKS)
    fresh = [_evaluate(algorithm, target, state, key, setting.held_out)["elbo"] for key in keys]
    return float(np.mean(fresh))


def _sample(
    setting: _Setting, algorithm: Any, start: PyTree, warm: _Warm | None, num_chains: int
) -> _Run:
    """Warm-up and kept draws of all chains, spread over cores or devices."""
    target = setting.at_home(setting.target if warm is None else warm.target).marginal()
    root = setting.home(setting.root)
    warm = None if warm is None else warm._replace(q=setting.home(warm.q))
    timer = time.perf_counter()
    num_weights, num_rows = tree.size(start), 1 if target.data is None else len(target.data.y)
    length = SAMPLER_CHUNK * min(10, max(1, int(CHEAP / (num_weights * num_rows))))
    length = max(1, min(length, int(CHUNK_BYTES / (8 * num_weights))))
    most = setting.most(length)
    lanes = Lanes(num_chains, is_shared=_is_shared(setting.layout))
    keys = [jax.random.fold_in(_named(root, "chain"), chain) for chain in lanes.own]
    targets = lanes.put(target)

    def begin(key: Array) -> Any:
        return _begin(target, algorithm, start, warm, _named(key, "init"))

    keeper = setting.keeper
    left = None if keeper is None else keeper.left(setting.phase)
    if left is None:
        states = [
            jax.device_put(begin(key), device)
            for key, device in zip(keys, lanes.places, strict=True)
        ]
        for state in states:
            if not bool(jnp.isfinite(state.log_density)):
                raise DivergenceError(
                    f"{algorithm.name} cannot start: the log-density at the starting point is"
                    f" {float(state.log_density)}. Start elsewhere with `params=`, or scale the"
                    " data."
                )
        run = Walk(lanes.spread(states), algorithm, lanes)
        run.stopped = f"All {algorithm.num_samples} draws of {num_chains} chain(s) were kept."
    else:
        run = Walk.from_record(left, jax.eval_shape(begin, keys[0]), lanes, algorithm)

    def advance(lane: int, state: Any, first: int, count: int, inner: int) -> Any:
        return draw(
            algorithm,
            target=targets[lane],
            state=state,
            key=lanes.keys(keys)[lane],
            begin=first,
            count=count,
            inner=inner,
            length=length,
            is_batched=lanes.is_batched,
        )

    for lane in range(lanes.num):
        jax.block_until_ready(advance(lane, run.states[lane], 0, 0, 1))
    compile_time = time.perf_counter() - timer

    total = algorithm.num_warmup + algorithm.num_samples * algorithm.thin
    meetings = algorithm.meetings()
    with Progress(algorithm.name, total, setting.progress) as bar, lanes:
        while (run.warmup_left or run.draws_left) and not run.ended:
            setting.look(run)
            is_warmup = run.warmup_left > 0
            inner = 1 if is_warmup else algorithm.thin
            count = min(most, run.warmup_left or run.draws_left)
            if (meeting := min((m for m in meetings if m > run.step), default=None)) is not None:
                count = min(count, meeting - run.step)
            results = lanes.run(advance, run.states, run.step, count, inner)
            run.states = [result[0] for result in results]
            infos = lanes.gather([result[1] for result in results], count)
            for name, values in infos._asdict().items():
                run.trace.setdefault(("warmup_" if is_warmup else "") + name, []).append(values)
            run.step += count * inner
            if run.step == meeting:
                run.states = lanes.pool(algorithm, run.states)
            if is_warmup:
                run.warmup_left -= count
            else:
                run.draws_left -= count
                run.keep(lanes.gather([result[2] for result in results], count))
            metrics = {n: float(np.mean(getattr(infos, n))) for n in algorithm.shown}
            bar.update(run.step, {"warmup": 1.0, **metrics} if run.warmup_left else metrics)
            if setting.callback is not None:
                with setting.kept(run):
                    told = Progressed(algorithm.name, run.step, total, metrics)
                    is_asked = setting.callback(told)
                if setting.any_asks(is_asked) and not is_warmup:
                    run.stopped = f"The callback stopped it at step {run.step}."
                    run.ended = True
    pieces = [run.piece()]
    if keeper is not None:
        keeper.write(setting.phase, run.step, run)
        pieces = [*keeper.pieces(), run.piece()]
    arrays = joined(pieces, 1)
    del pieces
    position = jax.vmap(algorithm.position) if lanes.is_batched else algorithm.position
    draws = taken_draws(arrays, jax.eval_shape(position, run.states[0]), int(lanes.is_batched))
    if target.likelihood is not None and target.likelihood.is_marginal:
        draws = complete(target, draws, _named(root, "complete"))
    notes = []
    diverged = int(np.sum(arrays.get("diverging", 0)))
    if diverged:
        notes.append(
            f"{diverged} of {arrays['diverging'].size} trajectories diverged; raise"
            " `target_acceptance` or `num_warmup` if there are many."
        )
    state = lanes.collect(run.states)
    return _Run(state, target, draws, arrays, None, run.stopped, notes, compile_time)


@partial(jax.jit, static_argnames="layout")
def _init(
    algorithm: Any, key: Array, target: Target, params: PyTree, *, layout: Layout | None = None
) -> Any:
    state = jax.tree.map(jnp.asarray, algorithm.init(key, target, params))
    return state if layout is None else layout.on_state(state)


@partial(jax.jit, static_argnames="layout")
def _init_from(
    algorithm: Any, key: Array, target: Target, q: Any, *, layout: Layout | None = None
) -> Any:
    state = jax.tree.map(jnp.asarray, algorithm.init_from(key, target, q))
    return state if layout is None else layout.on_state(state)


def _advance(algorithm: Algorithm, **arguments: Any) -> tuple[Any, Any, Array, Array]:
    """`_steps`; where one of them was not finite, again from the start and without it.

    So that steps which are all finite, as they nearly always are, need not keep the old state.
    """
    results = _steps(algorithm, skips=False, **arguments)
    return _steps(algorithm, skips=True, **arguments) if int(results[2]) else results


@partial(jax.jit, static_argnames=("length", "batch_size", "skips", "layout"))
def _steps(
    algorithm: Algorithm,
    *,
    target: Target,
    state: Any,
    key_step: Array,
    key_data: Array,
    begin: Array,
    count: Array,
    length: int,
    batch_size: int | None,
    stream: Batch | None,
    skips: bool,
    layout: Layout | None = None,
) -> tuple[Any, Any, Array, Array]:
    """Steps begin, ..., begin + count - 1: new state, their infos, steps not finite, all finite.

    With `skips` a step whose info is not finite leaves the state as it was.
    """
    data = target.data
    rows = 1 if data is None else len(data.y)
    is_full = data is None or batch_size == rows
    num_batches = 1 if batch_size is None else math.ceil(rows / batch_size)

    def batch_of(t: Array, j: Array, order: Array) -> tuple[Batch | None, Array]:
        if stream is not None:
            return jax.tree.map(lambda leaf: leaf[j], stream), order
        if is_full:
            return data, order
        position = t % num_batches
        order = jax.lax.cond(
            position == 0,
            lambda: batches.permutation(key_data, t // num_batches, rows),
            lambda: order,
        )
        assert data is not None
        assert batch_size is not None
        return batches.take(data, order, position, batch_size), order

    def one(j: Array, carry: tuple) -> tuple:
        state, order, infos, bad = carry
        t = begin + j
        batch, order = batch_of(t, j, order)
        batch = batch if layout is None else layout.on_rows(batch)
        new, info = algorithm.step(jax.random.fold_in(key_step, t), target, state, batch)
        info = _recorded(algorithm, info)
        new = new if layout is None else layout.on_state(new)
        finite = tree.all_finite(info)
        state = tree.where(finite, new, state) if skips else new
        infos = jax.tree.map(lambda buffer, v: buffer.at[j].set(v), infos, info)
        return state, order, infos, bad + (~finite)

    if is_full or stream is not None:
        order = jnp.zeros((), jnp.int32)
    else:
        order = batches.permutation(key_data, begin // num_batches, rows)
    first, _ = batch_of(jnp.asarray(begin), jnp.zeros((), jnp.int32), order)
    shapes = jax.eval_shape(algorithm.step, key_step, target, state, first)[1]
    shapes = _recorded(algorithm, shapes)
    infos = jax.tree.map(lambda s: jnp.zeros((length, *s.shape), s.dtype), shapes)
    carry = (state, order, infos, jnp.zeros((), jnp.int32))
    state, _, infos, bad = jax.lax.fori_loop(0, count, one, carry)
    return state, infos, bad, tree.all_finite(state)


def _recorded(algorithm: Algorithm, info: Any) -> dict[str, Any]:
    """What is kept of every step: not what would need a pass over the weights of its own."""
    return {n: v for n, v in info._asdict().items() if n not in algorithm.left_to_looks}


@jax.jit
def _refresh(algorithm: Algorithm, target: Target, state: Any, key: Array) -> Target:
    target = algorithm.settled(target, state)
    new = target.refresh(algorithm.approximation(target, state), key)
    if not getattr(algorithm, "learn_noise", True):
        new = dataclasses.replace(new, likelihood=target.likelihood)
    return new


@jax.jit
def _evaluate(
    algorithm: Algorithm,
    target: Target,
    state: Any,
    key: Array,
    held_out: Batch | None,
) -> dict[str, Array]:
    """The lower bound (or, for a point, the log-joint) and what it is made of."""
    target = algorithm.settled(target, state)
    q = algorithm.approximation(target, state)
    exact = algorithm.evidence(target, state)
    if exact is not None:
        told = {"elbo": exact, "objective": exact, "error": jnp.zeros((), jnp.float64)}
    elif (own := algorithm.objective(key, target, state)) is not None:
        told = own
    elif not algorithm.has_lower_bound:
        log_likelihood = target.scaled_log_likelihood(q.mean)
        log_joint = log_likelihood + target.log_prior(q.mean) - target.divergence()
        told = {"log_joint": log_joint, "nll": -log_likelihood, "objective": log_joint}
        told["error"] = jnp.zeros((), jnp.float64)
    else:
        told = lower_bound(target, q, key, EVAL_DRAWS)
        told["objective"] = told["elbo"]
    if held_out is not None:
        draws = q.sample(key, 1 if isinstance(q, Point) else EVAL_DRAWS)
        predictive = algorithm.predictive_target(target, q).to_predict()
        terms = jax.lax.map(lambda w: predictive.log_likelihood(w, held_out), draws)
        log_prob = jax.nn.logsumexp(terms, axis=0) - jnp.log(len(terms))
        told["validation"] = told["objective"] = jnp.mean(log_prob)
        told["error"] = jnp.zeros((), jnp.float64)
    return told


@jax.jit
def _strays(algorithm: Algorithm, target: Target, state: Any) -> Array:
    """Whether a standard deviation of q makes no sense beside the prior's."""
    target = algorithm.settled(target, state)
    q = algorithm.approximation(target, state)
    prior = target.prior
    if prior is None or not prior.is_gaussian or not (hasattr(q, "kl") and hasattr(q, "std")):
        return jnp.asarray(False)
    _, prec = prior.broadcast(tree.double(q.mean))
    ratio = tree.ravel(jax.tree.map(lambda s, p: s * jnp.sqrt(p), tree.double(q.std), prec))
    return (jnp.max(ratio) > WIDEST) | (jnp.min(ratio) < NARROWEST)


def lower_bound(target: Target, q: Any, key: Array, num_draws: int) -> dict[str, Array]:
    """elbo = -nll - kl on all rows of the target from draws of q, and its Monte-Carlo error.

    The elbo is the mean of h = log p(D, w) - log q(w), which does not vary at all where q is the
    posterior; kl is exact for Gaussians, and nll is what is left. A part of the model that has a
    posterior of its own adds its divergence to kl.
    """
    if hasattr(q, "transform"):
        noise = tree.normal_like(key, q.mean, num_draws)
        draws = jax.vmap(q.transform)(noise)
        squares = jax.vmap(lambda e: tree.total(jax.tree.map(jnp.square, e)))(noise)
        log_q = 0.5 * (tree.size(q.mean) - squares) - q.entropy()
    else:
        draws = q.sample(key, num_draws)
        log_q = jax.vmap(q.log_prob)(draws)
    log_likelihood = jax.lax.map(
        target.scaled_log_likelihood, draws, batch_size=min(num_draws, EVAL_BATCH)
    )
    divergence = log_q - jax.vmap(target.log_prior)(draws)
    h = log_likelihood - divergence
    has_closed_form = target.prior is not None and target.prior.is_gaussian and hasattr(q, "kl")
    kl = q.kl(target.prior) if has_closed_form else jnp.mean(divergence)
    kl = kl + target.divergence()
    elbo = jnp.mean(h) - target.divergence()
    error = jnp.std(h) / jnp.sqrt(num_draws)
    return {"elbo": elbo, "nll": -elbo - kl, "kl": kl, "error": error}


def check_algorithm(algorithm: Any, argument: str = "algorithm") -> Algorithm:
    if isinstance(algorithm, str):
        if algorithm not in ALGORITHMS:
            refuse(argument, algorithm, "be one of " + ", ".join(map(repr, ALGORITHMS)))
        return ALGORITHMS[algorithm]()
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        refuse(argument, algorithm, "be an object", f"Write bl.{algorithm.__name__}().")
    if not isinstance(algorithm, Algorithm):
        refuse(argument, algorithm, 'be an algorithm, such as bl.HMC() or "hmc"')
    return algorithm


def check_arguments(algorithm: Algorithm, **given: Any) -> None:
    """Refuse what can be refused by the arguments alone."""

    check_whole("seed", given["seed"], least=0)
    if algorithm.is_sampler:
        remedies = {
            "num_steps": "Set num_warmup, num_samples and thin on the algorithm.",
            "batch_size": "Samplers need all rows in every step.",
        }
        unset = {"num_steps": "auto", "batch_size": "auto", "patience": "auto"}
        for name in ("num_steps", "batch_size", "validation", "eval_every", "patience"):
            value = given[name]
            if not (value is None or (isinstance(value, str) and value == unset.get(name))):
                shown = Shown("held-out rows") if name == "validation" else value
                must = f"be left out for the sampler {algorithm.name}"
                refuse(name, shown, must, remedies.get(name, ""))
    elif given["num_chains"] is not None:
        must = f"be left out: {algorithm.name} is not a sampler"
        refuse("num_chains", given["num_chains"], must)
    for name in ("num_steps", "batch_size", "patience"):
        if not (given[name] is None or (isinstance(given[name], str) and given[name] == "auto")):
            check_whole(name, given[name], least=1)
    if (starts := given.get("starts", 1)) != "auto":
        check_whole("starts", starts, least=1)
    for name in ("num_chains", "num_data", "eval_every", "chunk_size", "microbatch"):
        if given[name] is not None:
            check_whole(name, given[name], least=1)
    if given["callback"] is not None and not callable(given["callback"]):
        refuse("callback", given["callback"], "be a function")


def _bind(
    model: Any,
    algorithm: Algorithm,
    data: Any,
    options: dict[str, Any],
    root: Array,
    layout: Layout | None,
) -> tuple[Target, PyTree, batches.Stream | None]:
    """The target, starting parameters, and the stream if data come as one."""
    key, num_data = _named(root, "network"), options["num_data"]
    if isinstance(model, Target):
        if data is not None:
            refuse("data", Shown("data beside a Target"), "be left out: a Target has its own")
        if model.data is not None:
            model.rows()
        return model, model.start, None
    if not isinstance(model, Model):
        refuse("model", Shown(f"a {type(model).__name__}"), "be a bl.Model or a bl.Target")
    if data is None:
        refuse("data", None, "be a pair (x, y)")
    source = None
    if _is_pair(data):
        if algorithm.takes_minibatches and not _is_shared(layout):
            source = batches.mapped(data, model, options["batch_size"], options["seed"])
        if source is None:
            target, start = model.bind(data, key)
            return target, start, None
    elif isinstance(data, tuple | np.ndarray | jax.Array) or not isinstance(data, Iterable):
        refuse(
            "data",
            Shown(f"a {type(data).__name__}"),
            "be a pair (x, y), or an iterable of such pairs with `num_data`",
        )
    put = jax.device_put if layout is None else layout.put_stream
    stream = batches.Stream(data if source is None else source, put)
    if source is not None:
        stream.notes.append(
            f"The memory map was not copied but read in batches of {source.batch_size} rows, as"
            " bl.sources.arrays does."
        )
    if num_data is None:
        num_data = stream.num_data()
        if _is_shared(layout):  # each process has told of its own rows
            num_data = int(np.sum(distributed.gather(num_data)))
    try:
        first = stream.first(EVAL_ROWS)
    except StopIteration:
        refuse("data", Shown("an iterable without a batch"), "give at least one batch (x, y)")
    first = first if layout is None else layout.first_rows(first)
    target, start = model.bind(first, key, num_data=int(num_data))
    return target, start, stream


def _is_pair(data: Any) -> bool:
    """Whether data are arrays (x, y), and not batches of them."""
    return isinstance(data, tuple | list) and len(data) == 2 and _is_table(data[0])


def _is_table(x: Any) -> bool:
    """Whether x is the inputs themselves and not the first batch of a list of two."""
    return not (isinstance(x, tuple | list) and len(x) == 2 and hasattr(x[0], "shape"))


def _held_out(target: Target, validation: Any) -> Batch:
    x, y = check_data(validation, "validation")
    check_like_training(x, target)
    return target.batch((x, target.likelihood.check(y)))


def _check_start(params: PyTree, start: PyTree) -> PyTree:
    if start is None:
        return jax.tree.map(jnp.asarray, params)
    if str(jax.tree.structure(params)) != str(jax.tree.structure(start)):
        refuse(
            "params",
            Shown(f"the tree {jax.tree.structure(params)}"),
            f"have the structure {jax.tree.structure(start)}",
        )
    names = tree.leaf_names(start)
    for name, p, s in zip(names, jax.tree.leaves(params), jax.tree.leaves(start), strict=True):
        if jnp.shape(p) != s.shape:
            refuse(
                "params", Shown(f"shape {jnp.shape(p)} for {name}"), f"have shape {s.shape} there"
            )
    return jax.tree.map(lambda p, s: jnp.asarray(p, s.dtype), params, start)


def _check_suits(
    algorithm: Algorithm,
    target: Target,
    batch_size: Any,
    stream: Any,
    num_data: Any,
    validation: Any,
) -> None:
    if target.is_density:
        if validation is not None:
            refuse("validation", Shown("held-out rows"), "be left out for a bare log-density")
        if algorithm.needs_per_example:
            refuse(
                "algorithm",
                Shown(algorithm.name),
                "work without per-example terms on a bare log-density",
                "Use bl.Model with data, or another algorithm.",
            )
        if algorithm.needs_gaussian_prior:
            refuse(
                "algorithm",
                Shown(algorithm.name),
                "work without a Gaussian prior on a bare log-density",
                "Use bl.Model with bl.priors.Normal, or another algorithm.",
            )
        if batch_size != "auto":
            refuse("batch_size", batch_size, "be left out for a bare log-density")
    if algorithm.needs_gaussian_prior:
        check_gaussian(target.prior, algorithm.name)
    if algorithm.is_sampler:
        check_given(
            target.prior,
            f"the sampler {algorithm.name}",
            "Learn it with a variational method first, and give what it found.",
        )
    if stream is not None and batch_size != "auto":
        refuse("batch_size", batch_size, "be left out: an iterable has batches of its own")
    if stream is not None and target.likelihood.refreshes:
        refuse(
            "data",
            Shown("an iterable of batches"),
            f"be arrays (x, y): the noise of {type(target.likelihood).__name__} is inferred from"
            " all rows",
            "Give its covariance, or use Gaussian().",
        )
    if stream is not None and not algorithm.takes_minibatches:
        refuse(
            "data",
            Shown("an iterable of batches"),
            f"be arrays (x, y): {algorithm.name} needs all rows in every step",
        )
    if num_data is not None and stream is None:
        refuse("num_data", num_data, "be left out when data are arrays")


def _tries_starts(
    algorithm: Algorithm,
    options: dict[str, Any],
    model: Any,
    target: Target,
    start: PyTree,
    given: Any,
    stream: Any,
) -> bool:
    """Whether several starts are tried: asked for, or worth it."""
    asked, trying = options.get("starts", 1), algorithm  # runs kept before had one
    while not trying.tries_starts:
        before = trying.warm_start()
        if before is None:
            break
        trying = before
    reasons = {
        f"{algorithm.name} does not begin with mean field": not trying.tries_starts,
        "`params` say where to start": given is not None,
        "a Target has a start of its own": not isinstance(model, Model),
        "an iterable of batches is read from one start": stream is not None,
        "leaves without a posterior are trained from one start": getattr(model, "bayesian", None)
        is not None,
    }
    why = [reason for reason, holds in reasons.items() if holds]
    if asked != "auto":
        if int(asked) > 1 and why:
            refuse("starts", asked, f"be left out: {why[0]}")
        return int(asked) > 1
    if why or tree.size(start) > MOST_WEIGHTS:
        return False
    # One matrix of weights makes no hidden units, and a run told its steps is to be no longer. Of
    # classes, guessing has a bound so good that a start on its way to a better one seems worse.
    has_hidden = sum(leaf.ndim > 1 for leaf in jax.tree.leaves(start["network"])) > 1
    is_regression = target.likelihood.kind == "regression"
    return has_hidden and is_regression and options["num_steps"] == "auto"


def _another_start(target: Target, start: PyTree, root: Array, number: int) -> PyTree:
    """The network initialised by another key, in the structure and dtypes of the first."""
    assert target.data is not None
    example = jax.tree.map(lambda leaf: leaf[0], target.data.x)
    key = jax.random.fold_in(_named(root, "network"), number)
    with user_precision():
        network = target.network.init(key, example, target.likelihood.num_outputs)
    return _check_start(start | {"network": network}, start)


def _check_finite_start(target: Target, state: Any, start: PyTree) -> None:
    log_joint = float(_log_joint(target, start))
    if not (np.isfinite(log_joint) and bool(tree.all_finite(state))):
        raise DivergenceError(
            f"The log-density at the starting point is {log_joint}. Scale x and y to unit spread,"
            " or start elsewhere with `params=`."
        )


def _warn_of_data(target: Target) -> None:
    """`fit` scales nothing; priors and step sizes are made for columns of about unit spread."""
    assert target.data is not None
    told = []
    if len(target.data.y) == 1:
        told.append("There is a single row: the posterior is nearly the prior.")
    for name, leaf in zip(
        tree.leaf_names({"x": target.data.x}), jax.tree.leaves(target.data.x), strict=True
    ):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            continue
        columns = np.abs(np.asarray(leaf, np.float64)).reshape(len(leaf), -1)
        largest = columns.max(axis=0)
        odd = largest[(largest > ODD_SCALE) | ((largest > 0) & (largest < 1 / ODD_SCALE))]
        if odd.size:
            told.append(
                f"{odd.size} column(s) of {name} are as large as {odd.max():.3g} or as small as"
                f" {odd.min():.3g}. Scale them to unit spread, as the estimators do."
            )
    if told:
        warnings.warn(" ".join(told), DataWarning, stacklevel=5)


@jax.jit
def _log_joint(target: Target, params: PyTree) -> Array:
    return target.log_joint(params)


def _check_goes_on(algorithm: Algorithm, run: Course, what: str) -> None:
    if run.recent > MAX_BACK_OFFS or not hasattr(algorithm, "learning_rate"):
        _give_up(algorithm, run, what)


def _give_up(algorithm: Algorithm, run: Course, what: str) -> NoReturn:
    raise DivergenceError(
        f"{algorithm.name} {what} after step {run.step} and {run.recent - 1} shorter steps did"
        " not help. Scale x and y to unit spread, lower `learning_rate`, or check the network"
        " for divisions by zero."
    )


def _shortened(algorithm: Algorithm, scale: float) -> Algorithm:
    if scale == 1.0:
        return algorithm
    rate = algorithm.learning_rate  # type: ignore[attr-defined]
    return eqx.tree_at(lambda a: a.learning_rate, algorithm, rate * scale)


def _named(key: Array, name: str) -> Array:
    """A key of its own for each purpose."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))
