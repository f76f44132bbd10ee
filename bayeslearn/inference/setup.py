"""From a request to a run: the model bound to data, checked, with its starts."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable
from typing import NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.algorithms.base import Algorithm
from bayeslearn.algorithms.ensemble import Composite
from bayeslearn.algorithms.map import MAP
from bayeslearn.data.batches import auto_batch_size
from bayeslearn.data.memory_maps import is_mapped, mapped
from bayeslearn.data.rows import Batch, Data, check_data, is_arrays, merge_rows, pad_rows
from bayeslearn.data.streams import Stream
from bayeslearn.distributed.mesh import on_host
from bayeslearn.distributed.processes import gather
from bayeslearn.errors import DataWarning, Shown, refuse, warn
from bayeslearn.families.base import Family, Gaussian
from bayeslearn.gradients.loops import check_loops
from bayeslearn.inference.arguments import check_suits, is_auto
from bayeslearn.inference.context import named_key
from bayeslearn.inference.evaluation_plan import EVAL_ROWS
from bayeslearn.inference.multistart import MultiStart, further_starts
from bayeslearn.inference.request import Request
from bayeslearn.models.constraints import unconstrain
from bayeslearn.models.model import Model
from bayeslearn.models.target import Target, check_like_training
from bayeslearn.sizes import BYTES_PER_MEMBER, BYTES_PER_WEIGHT, check_memory
from bayeslearn.tree import Array, PyTree

SCALE_WARNING = 1e4  # columns larger than this, or smaller than its inverse, deserve a warning
MAX_WEIGHTS_FOR_STARTS = 10_000
NUM_CHAINS = 4


class Bound(NamedTuple):
    """A request bound to its data."""

    target: Target
    starts: list[PyTree]
    stream: Stream | None
    validation: Batch | None
    batch_size: int
    initial: Family | None  # a Gaussian to start from
    partial_model: Model | None  # whose other leaves are frozen
    multistart: MultiStart | None
    num_steps: int | None  # in all; None: the defaults
    given_rows: Batch | None  # the training rows, before they were merged and padded


def bind(request: Request, key: Array) -> Bound:
    """Bind the model, and refuse what does not fit together."""
    algorithm, options, layout = request.algorithm, request.options, request.layout
    with contextlib.nullcontext() if layout is None else on_host():
        target, start, stream, given = _bind_data(request, key)
    batch_size = request.batch_size
    if stream is not None and is_arrays(request.data):  # a memory map, in batches of this size
        batch_size = "auto"
    init, initial = request.init, None
    if isinstance(init, Gaussian):
        initial, init = init, init.mean
    if init is not None:
        if target.kinds is not None and initial is None:
            init = unconstrain(target.kinds, check_start(init, target.constrained(start)))
        start = check_start(init, start)
    if start is None:
        refuse("init", None, "be given to start from, for a Target that has no start of its own")
    check_suits(algorithm, target, batch_size, stream, options.num_data, request.validation)
    validation = None
    if request.validation is not None:
        validation = _bind_validation(target, request.validation)
    partial_model = _partial_model(request, stream)
    if partial_model is not None and request.init is None and not request.is_legacy:
        _check_given_weights(partial_model, target, start)
    algorithm.check(
        *((target, start) if partial_model is None else partial_model.freeze(target, start))
    )
    if not algorithm.capabilities.needs_linear_model:  # others start from the curvature, at least
        check_loops(target, start, algorithm.name)
    multistart = _multistart(request, target, start, stream)
    starts = [start]
    if isinstance(algorithm, Composite):
        _check_composite(request, algorithm, target)
        _check_number("num_members", algorithm.num_members, start)
        starts = further_starts(key, target, start, algorithm.num_members)
    elif multistart is not None:
        _check_number("starts", multistart.num_starts, start)
        starts = further_starts(key, target, start, multistart.num_starts)
    elif algorithm.capabilities.is_sampler:
        starts = _chain_starts(request, key, target, start)
    rows = 1 if target.data is None else len(target.data.y)
    if is_auto(batch_size):
        batch_size = auto_batch_size(rows)
    elif int(batch_size) > rows:
        if not options.merge_rows:  # merging may have left fewer rows than there were
            refuse("batch_size", batch_size, f"be at most the number of rows ({rows})")
        batch_size = rows
    microbatch = options.microbatch
    if microbatch is not None and stream is None and int(batch_size) % int(microbatch):
        refuse("microbatch", microbatch, f"divide the rows of a batch ({batch_size})")
    target = dataclasses.replace(target, microbatch=microbatch, remat=options.remat)
    if isinstance(request.model, Model) and stream is None:
        _warn_of_data(target)
    return Bound(
        target,
        starts,
        stream,
        validation,
        int(batch_size),
        initial,
        partial_model,
        multistart,
        _total_steps(request, target, int(batch_size), stream),
        given,
    )


def _chain_starts(request: Request, key: Array, target: Target, start: PyTree) -> list[PyTree]:
    """A start for each chain, independent of the others where that is possible; else one for all.

    Chains that start around one mode cannot see that there are others.
    """
    num_chains = NUM_CHAINS if request.num_chains is None else int(request.num_chains)
    number = num_chains * tree.size(start) * getattr(request.algorithm, "num_samples", 1)
    check_memory("num_chains", num_chains, 8.0 * number, "the draws of so many chains")
    draw = target.draw_start
    if request.init is not None or request.is_legacy:
        return [start]
    if draw is not None:
        keys = jax.random.split(named_key(key, "starts"), num_chains)
        return [check_start(draw(own), start) for own in keys]
    if target.data is None or target.frozen is not None:
        return [start]
    return further_starts(key, target, start, num_chains)


def _check_number(argument: str, number: int, start: PyTree) -> None:
    """Refuse so many starts that they do not fit into memory."""
    each = BYTES_PER_WEIGHT * tree.size(start) + BYTES_PER_MEMBER
    check_memory(argument, number, number * each, "so many starts of the network")


def _check_composite(request: Request, algorithm: Composite, target: Target) -> None:
    """Refuse what members from independent starts cannot do."""
    check_suits(algorithm.member, target, request.batch_size, None, None, request.validation)
    if not isinstance(request.model, Model):
        refuse(
            "model",
            Shown("a Target"),
            f"be a bl.Model for {algorithm.name}: its members start from new initialisations",
        )
    if request.init is not None:
        refuse("init", Shown("a start"), f"be left out: members of {algorithm.name} start apart")
    if target.refreshes:
        refuse(
            "model",
            Shown("one that learns its prior or noise covariance in closed form"),
            f"have them fixed for {algorithm.name}: each member would learn its own",
        )


def _total_steps(
    request: Request, target: Target, batch_size: int, stream: Stream | None
) -> int | None:
    """Steps in all that were requested, also by epochs; None: the defaults."""
    if request.num_epochs is None:
        return None if is_auto(request.num_steps) else int(request.num_steps)
    rows, size = int(target.num_data), batch_size
    if stream is not None:
        size = stream.batch_size or batch_size
    elif target.data is not None:
        rows = len(target.data.y)
    return int(request.num_epochs) * math.ceil(rows / size)


def _bind_data(request: Request, key: Array) -> tuple[Target, PyTree, Stream | None, Batch | None]:
    """The target, starting parameters, the stream if data come as one, and rows as given."""
    model, data, layout = request.model, request.data, request.layout
    key = named_key(key, "network")
    if isinstance(model, Target):
        if data is not None:
            refuse("data", Shown("data beside a Target"), "be left out: a Target has its own")
        given = None if model.data is None else model.rows()
        return _merged(request, model), model.start, None, given
    if not isinstance(model, Model):
        refuse("model", Shown(f"a {type(model).__name__}"), "be a bl.Model or a bl.Target")
    if data is None:
        refuse("data", None, "be (x, y)")
    source = None
    if is_arrays(data):
        if request.algorithm.capabilities.takes_minibatches and not request.is_shared:
            source = mapped(data, model, request.batch_size, request.seed)
        if source is None:
            target, start = model.bind(data, key)
            return _merged(request, target), start, None, target.data
    elif isinstance(data, tuple | np.ndarray | jax.Array) or not isinstance(data, Iterable):
        refuse(
            "data",
            Shown(f"a {type(data).__name__}"),
            "be (x, y), (x, y, weight), or an iterable of such batches",
        )
    put = jax.device_put if layout is None else layout.put_stream
    stream = Stream(data if source is None else source, put)
    if source is not None:
        stream.notes.append(
            f"The memory map was not copied but read in batches of {source.batch_size} rows, as"
            " bl.sources.arrays does."
        )
    num_data = request.options.num_data
    if num_data is None:
        num_data = stream.num_data()
        if request.is_shared:  # each process has counted its own rows
            num_data = int(np.sum(gather(num_data)))
    try:
        first = stream.first(EVAL_ROWS)
    except StopIteration:
        refuse("data", Shown("an iterable without a batch"), "give at least one batch (x, y)")
    first = first if layout is None else layout.first_rows(first)
    target, start = model.bind(first, key, num_data=int(num_data))
    return target, start, stream, target.data


def _merged(request: Request, target: Target) -> Target:
    """The target on its rows in canonical form, where that is asked for."""
    data = target.data
    if not request.options.merge_rows or data is None:
        return target
    x, y, weight = jax.tree.map(np.asarray, data)
    rows = merge_rows((x, y, weight), request.seed)
    if is_auto(request.batch_size) and auto_batch_size(len(rows.y)) == len(rows.y):
        rows = pad_rows(rows)
    return target.with_data(target.batch((rows.x, rows.y), rows.weight))


def is_in_memory(data: object) -> TypeGuard[Data]:
    """Whether data are arrays that are bound as they are."""
    return is_arrays(data) and not is_mapped(data)


def _bind_validation(target: Target, validation: Data) -> Batch:
    x, y, weight = check_data(validation, "validation")
    check_like_training(x, target)
    return target.batch((x, target.likelihood.check(y)), weight)


def check_start(params: PyTree, start: PyTree) -> PyTree:
    """Parameters to start from, in the structure and dtypes of the model's own."""
    if start is None:
        return jax.tree.map(jnp.asarray, params)
    if str(jax.tree.structure(params)) != str(jax.tree.structure(start)):
        refuse(
            "init",
            Shown(f"the tree {jax.tree.structure(params)}"),
            f"have the structure {jax.tree.structure(start)}",
        )
    names = tree.leaf_names(start)
    for name, p, s in zip(names, jax.tree.leaves(params), jax.tree.leaves(start), strict=True):
        if jnp.shape(p) != s.shape:
            refuse("init", Shown(f"shape {jnp.shape(p)} for {name}"), f"have shape {s.shape} there")
    return tree.cast_like(params, start)


def _partial_model(request: Request, stream: Stream | None) -> Model | None:
    """The model, where only some of its leaves have a posterior."""
    model = request.model
    if not isinstance(model, Model) or model.bayesian is None:
        return None
    is_given = model.frozen == "given"
    if isinstance(request.algorithm, MAP) and not is_given:
        return None
    if stream is not None and not stream.restarts and not is_given:
        refuse("data", Shown("an iterator"), "be readable twice, to train the other leaves first")
    return model


def _check_given_weights(model: Model, target: Target, start: PyTree) -> None:
    """Refuse to freeze random weights as if they had been given."""
    if model.frozen != "given" or target.data is None:
        return
    (other,) = further_starts(jax.random.key(1), target, start, 2)[1:]
    frozen = [model.freeze(target, params)[0].frozen for params in (start, other)]
    for name, first, second in zip(
        tree.leaf_names(frozen[0]), *map(jax.tree.leaves, frozen), strict=True
    ):
        if not np.array_equal(first, second):
            refuse(
                "frozen",
                "given",
                f'be "train" or "joint": the network has no weights of its own, and {name} would'
                " be frozen at random",
                "Or give a network that has weights, or `init=`.",
            )


def _multistart(
    request: Request, target: Target, start: PyTree, stream: Stream | None
) -> MultiStart | None:
    """How several starts are tried: as requested, or where it is the default."""
    algorithm, requested = request.algorithm, request.starts
    trying: Algorithm | None = algorithm
    while trying is not None and not trying.capabilities.supports_multistart:
        trying = trying.warm_start()
    model = request.model
    reasons = {
        f"{algorithm.name} does not begin with mean field": trying is None,
        "`init` says where to start": request.init is not None,
        "a Target has a start of its own": not isinstance(model, Model),
        "an iterable of batches is read from one start": stream is not None,
        "frozen leaves are trained from one start": isinstance(model, Model)
        and model.bayesian is not None,
    }
    why = [reason for reason, holds in reasons.items() if holds]
    if is_auto(requested):
        return None if why else _default_multistart(request, target, start)
    if not isinstance(requested, MultiStart):
        requested = MultiStart(num_starts=int(requested))
    if requested.num_starts > 1 and why:
        refuse("starts", requested.num_starts, f"be left out: {why[0]}")
    return requested if requested.num_starts > 1 else None


def _default_multistart(request: Request, target: Target, start: PyTree) -> MultiStart | None:
    """None; version 0.1 tried eight starts of small regression networks with hidden units."""
    if not request.is_legacy or tree.size(start) > MAX_WEIGHTS_FOR_STARTS:
        return None
    has_hidden = sum(leaf.ndim > 1 for leaf in jax.tree.leaves(start["network"])) > 1
    is_regression = target.likelihood.kind == "regression"
    is_default = has_hidden and is_regression and is_auto(request.num_steps)
    return MultiStart() if is_default else None


@jax.jit  # on the device: the rows may be many
def _largest(leaf: Array) -> Array:
    """The largest absolute value of each column."""
    return jnp.max(jnp.abs(leaf.reshape(len(leaf), -1)), axis=0)


def _warn_of_data(target: Target) -> None:
    """`fit` scales nothing; priors and step sizes are made for columns of about unit variance."""
    assert target.data is not None
    found = []
    if len(target.data.y) == 1:
        found.append("There is a single row: the posterior is nearly the prior.")
    names = tree.leaf_names({"x": target.data.x})
    for name, leaf in zip(names, jax.tree.leaves(target.data.x), strict=True):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            continue
        largest = np.asarray(_largest(leaf), np.float64)
        odd = largest[(largest > SCALE_WARNING) | ((largest > 0) & (largest < 1 / SCALE_WARNING))]
        if odd.size:
            found.append(
                f"{odd.size} column(s) of {name} are as large as {odd.max():.3g} or as small as"
                f" {odd.min():.3g}. Scale them to unit variance, as the estimators do."
            )
    if found:
        warn(" ".join(found), DataWarning)
