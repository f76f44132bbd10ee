"""Checks of what a user passes to `fit`, before any work."""

from __future__ import annotations

from collections.abc import Sequence

from bayeslearn.algorithms import ALGORITHMS
from bayeslearn.algorithms.base import Algorithm
from bayeslearn.data.rows import Data
from bayeslearn.data.streams import Stream
from bayeslearn.errors import Shown, check_whole, did_you_mean, refuse
from bayeslearn.inference.context import Callback
from bayeslearn.inference.multistart import MultiStart
from bayeslearn.inference.options import FitOptions
from bayeslearn.models.priors.checks import check_gaussian, require_fixed_scale
from bayeslearn.models.target import Target
from bayeslearn.sizes import check_seed


def check_algorithm(
    algorithm: Algorithm | str, argument: str = "algorithm", alternatives: Sequence[str] = ()
) -> Algorithm:
    """An algorithm, from itself or from its name; `alternatives` are other names to choose from."""
    if isinstance(algorithm, str):
        if algorithm not in ALGORITHMS:
            names = (*alternatives, *ALGORITHMS)
            hint = did_you_mean(algorithm, names)
            refuse(argument, algorithm, "be one of " + ", ".join(map(repr, names)), hint)
        return ALGORITHMS[algorithm]()
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        refuse(argument, algorithm, "be an object", f"Write bl.{algorithm.__name__}().")
    if not isinstance(algorithm, Algorithm):
        refuse(argument, algorithm, 'be an algorithm, such as bl.HMC() or "hmc"')
    return algorithm


def is_auto(value: object) -> bool:
    """Whether an argument is left to `fit`."""
    return isinstance(value, str) and value == "auto"


def check_arguments(
    algorithm: Algorithm,
    options: FitOptions,
    *,
    seed: int | None,
    num_steps: int | str,
    num_epochs: int | None,
    batch_size: int | str,
    num_chains: int | None,
    starts: int | str | MultiStart,
    validation: Data | None,
    callback: Callback | None,
) -> None:
    """Refuse what can be refused by the arguments alone."""
    check_seed(seed)
    if algorithm.capabilities.is_sampler:
        remedies = {
            "num_steps": "Set num_warmup, num_samples and thin on the algorithm.",
            "num_epochs": "Set num_warmup, num_samples and thin on the algorithm.",
            "batch_size": "Samplers need all rows in every step.",
        }
        for name, value in (
            ("num_steps", num_steps),
            ("num_epochs", num_epochs),
            ("batch_size", batch_size),
            ("validation", validation),
            ("eval_every", options.eval_every),
            ("patience", options.patience),
        ):
            if not (value is None or is_auto(value)):
                shown = Shown("held-out rows") if name == "validation" else value
                must = f"be left out for the sampler {algorithm.name}"
                refuse(name, shown, must, remedies.get(name, ""))
    elif num_chains is not None:
        refuse("num_chains", num_chains, f"be left out: {algorithm.name} is not a sampler")
    if num_epochs is not None and not is_auto(num_steps):
        refuse("num_epochs", num_epochs, "be left out where `num_steps` is given")
    for name, value in (("num_steps", num_steps), ("batch_size", batch_size)):
        if not is_auto(value):
            check_whole(name, value, least=1)
    for name, value in (("num_chains", num_chains), ("num_epochs", num_epochs)):
        if value is not None:
            check_whole(name, value, least=1)
    if not is_auto(starts) and not isinstance(starts, MultiStart):
        check_whole("starts", starts, least=1)
    if callback is not None and not callable(callback):
        refuse("callback", callback, "be a function")


def check_suits(
    algorithm: Algorithm,
    target: Target,
    batch_size: int | str,
    stream: Stream | None,
    num_data: int | None,
    validation: Data | None,
) -> None:
    """Refuse a model or data that the algorithm cannot work with."""
    needs = algorithm.capabilities
    if target.is_density:
        _check_suits_density(algorithm, batch_size, validation)
    if needs.needs_gaussian_prior:
        check_gaussian(target.prior, algorithm.name)
    if needs.is_sampler:
        require_fixed_scale(
            target.prior,
            f"the sampler {algorithm.name}",
            "Learn it with a variational method first, and give what it found.",
        )
    if stream is not None and not is_auto(batch_size):
        refuse("batch_size", batch_size, "be left out: an iterable has batches of its own")
    if stream is not None and target.likelihood.refreshes:
        refuse(
            "data",
            Shown("an iterable of batches"),
            f"be arrays (x, y): the noise of {type(target.likelihood).__name__} is inferred from"
            " all rows",
            "Give its covariance, or use Gaussian().",
        )
    if stream is not None and not needs.takes_minibatches:
        refuse(
            "data",
            Shown("an iterable of batches"),
            f"be arrays (x, y): {algorithm.name} needs all rows in every step",
        )
    if num_data is not None and stream is None:
        refuse("num_data", num_data, "be left out when data are arrays")


def _check_suits_density(
    algorithm: Algorithm, batch_size: int | str, validation: Data | None
) -> None:
    needs = algorithm.capabilities
    if validation is not None:
        refuse("validation", Shown("held-out rows"), "be left out for a bare log-density")
    if needs.needs_per_example:
        refuse(
            "algorithm",
            Shown(algorithm.name),
            "work without per-example terms on a bare log-density",
            "Use bl.Model with data, or another algorithm.",
        )
    if needs.needs_gaussian_prior:
        refuse(
            "algorithm",
            Shown(algorithm.name),
            "work without a Gaussian prior on a bare log-density",
            "Use bl.Model with bl.priors.Normal, or another algorithm.",
        )
    if not is_auto(batch_size):
        refuse("batch_size", batch_size, "be left out for a bare log-density")
