"""`fit(model, algorithm, data, seed=0)` gives a `Posterior`; `resume(folder, data)` goes on."""

from __future__ import annotations

import contextlib
import os

from jax.sharding import Mesh

from bayeslearn.algorithms.base import Algorithm
from bayeslearn.data.rows import Batches, Data
from bayeslearn.distributed.mesh import Layout
from bayeslearn.errors import Shown, moved_keywords, refuse
from bayeslearn.inference.arguments import check_algorithm
from bayeslearn.inference.context import Callback
from bayeslearn.inference.multistart import MultiStart
from bayeslearn.inference.options import MOVED, Checkpoint, Devices, FitOptions, to_layout
from bayeslearn.inference.request import Request
from bayeslearn.inference.resuming import check_rebuilt, rebuild_model, require_or_stored
from bayeslearn.inference.run import infer
from bayeslearn.models.model import Model
from bayeslearn.models.protocols import Network
from bayeslearn.models.target import Target
from bayeslearn.precision import double_precision
from bayeslearn.results.posterior import Posterior
from bayeslearn.storage.checkpoints import Checkpointer
from bayeslearn.storage.run_folder import RunFolder
from bayeslearn.tree import PyTree


@moved_keywords(**MOVED)
@double_precision
def fit(
    model: Model | Target,
    algorithm: Algorithm | str,
    data: Data | Batches | None = None,
    *,
    seed: int,
    num_steps: int | str = "auto",
    num_epochs: int | None = None,
    batch_size: int | str = "auto",
    num_chains: int | None = None,
    validation: Data | None = None,
    init: PyTree | None = None,
    starts: int | MultiStart = 1,
    callback: Callback | None = None,
    progress: bool | None = None,
    checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    devices: str | Mesh | Devices | None = None,
    options: FitOptions | None = None,
) -> Posterior:
    """Infer the posterior over a model's weights.

    Args:
        model: a `Model`, or a `Target` (a model already bound to data, or a bare log-density).
        algorithm: an algorithm such as `bl.VOGN()`, or its name.
        data: (x, y) or (x, y, weight), arrays or data frames, where a weight of 2 is the row twice;
            or an iterable of batches, such as one of `bl.sources`, a loader of PyTorch, a
            `tf.data.Dataset` or a generator.
        seed: a whole number; the same seed gives the same result.
        num_steps: optimisation steps of all phases together, a warm start included. "auto": up to
            5000 of the method and 5000 of each method before it (`bayeslearn algorithms` has those
            that start with another), fewer once the objective has converged or an iterator ends,
            which is a `DataError` where a number was given. Samplers carry their own counts.
        num_epochs: passes over the data, in place of `num_steps`.
        batch_size: rows per step; "auto": all rows up to 2048, else 256.
        num_chains: chains of a sampler; default: 4.
        validation: held-out data like `data`; their log-likelihood then decides when to stop.
        init: where to start, instead of the network's own initialisation. A Gaussian, such as
            another posterior's `family`, is also the first q of a variational method.
        starts: initialisations of the network that are tried, or a `MultiStart` that says how; for
            methods that begin with mean field. The best goes on.
        callback: called with a `FitEvent` at every evaluation of every phase; return True to end
            the phase.
        progress: show a progress bar; None: only on a terminal or in a notebook.
        checkpoint: a folder in which the run is saved, so that `bl.resume` can go on with it, or a
            `Checkpoint` that says how often. On SIGTERM and SIGINT a last checkpoint is written
            before the run leaves.
        devices: "all": rows are divided among all devices of all processes; a `jax.sharding.Mesh`,
            or `Devices`, says among which. With several processes each calls `fit` alike, and all
            get the same posterior; arrays are given whole to each, an iterable gives each its own
            rows of every batch; a sampler's chains are divided among the processes.
        options: a `FitOptions` with what is rarely set.

    >>> posterior = bl.fit(model, bl.Laplace(), (x, y), seed=0)
    >>> posterior.predict(x[:2]).mean.round(1)
    array([0.7, 1.4])
    >>> [phase.name for phase in posterior.phases]
    ['main/warm start', 'main']
    """
    layout = to_layout(devices)
    checkpointer = _checkpointer(checkpoint, layout)
    with contextlib.nullcontext() if checkpointer is None else contextlib.closing(checkpointer):
        request = Request(
            model,
            check_algorithm(algorithm),
            data,
            seed,
            num_steps=num_steps,
            num_epochs=num_epochs,
            batch_size=batch_size,
            num_chains=num_chains,
            validation=validation,
            init=init,
            starts=starts,
            callback=callback,
            progress=progress,
            checkpointer=checkpointer,
            layout=layout,
            options=FitOptions() if options is None else options,
        )
        return Posterior.from_run(infer(request))


def _checkpointer(
    checkpoint: str | os.PathLike[str] | Checkpoint | None, layout: Layout | None
) -> Checkpointer | None:
    if checkpoint is None:
        return None
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    is_shared = layout is not None and layout.is_shared
    new = Checkpointer(checkpoint.folder, checkpoint.every, checkpoint.keep, is_shared)
    if checkpoint.resume and RunFolder(new.folder, "").has_run():
        return Checkpointer.reopen(checkpoint.folder, is_shared=is_shared)
    return new


@moved_keywords(**MOVED)
@double_precision
def resume(
    path: str | os.PathLike[str] | Checkpoint,
    data: Data | Batches | None = None,
    *,
    model: Model | Target | None = None,
    network: Network | None = None,
    algorithm: Algorithm | None = None,
    init: PyTree | None = None,
    validation: Data | None = None,
    callback: Callback | bool | None = None,
    progress: bool | None = None,
    devices: str | Mesh | Devices | None = None,
    options: FitOptions | None = None,
) -> Posterior:
    """Go on with a run of `fit(..., checkpoint=path)` from its last sound checkpoint.

    The result has the bits of a run that was never interrupted. A run that had ended gives its
    result.

    Args:
        path: the folder, or a `Checkpoint` with another `every` and `keep`.
        data: the same data as in the first run; others are refused. An iterable is read from its
            beginning up to where the run was, one of `bl.sources` from there on.
        model, network, algorithm, init: what cannot be stored as data, again: a `Target`, a network
            that is not one of `bl.networks`, an algorithm with an Optax object or a function in it.
            Default: as they were.
        validation: the same held-out data, where there were any.
        callback: the callback, where there was one; False: go on without.
        progress, devices: as in `fit`; they need not be as they were, and the result is the same
            but for rounding.
        options: of its fields `chunk_size`, `microbatch` and `remat` are used; the others are as
            they were.
    """
    layout = to_layout(devices)
    is_shared = layout is not None and layout.is_shared
    if isinstance(path, Checkpoint):
        checkpointer = Checkpointer.reopen(path.folder, path.every, path.keep, is_shared)
    else:
        checkpointer = Checkpointer.reopen(path, is_shared=is_shared)
    with contextlib.closing(checkpointer):
        stored = checkpointer.request
        assert stored is not None
        if callback is None and stored["has_callback"]:
            refuse("callback", None, "be given again", "Write callback=False to go on without it.")
        if model is None:
            model = rebuild_model(stored["model"], network)
            if network is None:
                check_rebuilt(model, data, checkpointer)
        elif network is not None:
            refuse("network", Shown("a network"), "be left out beside a model, which has its own")
        given = FitOptions() if options is None else options
        request = Request.from_stored(
            stored,
            model=model,
            algorithm=check_algorithm(
                require_or_stored("algorithm", stored["algorithm"], algorithm)
            ),
            data=data,
            init=require_or_stored("init", stored["init"], init),
            validation=validation,
            callback=None if callback is False or callback is True else callback,
            progress=progress,
            checkpointer=checkpointer,
            layout=layout,
            options=given,
        )
        return Posterior.from_run(infer(request))
