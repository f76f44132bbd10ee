r"""Learning as data come: yesterday's posterior is today's prior.

    p(w | D_old, D_new)  is proportional to  p(D_new | w) p(w | D_old)

with q in the place of p(w | D_old), over all parameters, the noise scale included. What the
likelihood learned from the first y (number of classes, columns) stays as it was.

    Gaussian q     becomes the prior as it is, and the new run starts there
    Conjugate      exactly, in closed form
    draws          are weighed by p(D_new | w) and resampled while Pareto's k-hat is below 0.7; else
                   a rerun on all data if `history` is given; else a rerun from a Gaussian with the
                   draws' mean and (shrunken, or low-rank) covariance
    a mixture      is updated member by member, each with its own q as the prior; weights stay equal
    another q      becomes the independent Gaussian with its means and variances; what does not
                   vary (biases under dropout) keeps the scale of the prior before
    a point        has no uncertainty to start from, and is refused, also in a mixture

A mean-field q forgets correlations, so that its mean drifts with the number of updates and depends
on the order of the data; a full or block covariance does so far less.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.algorithms.base import Algorithm
from bayeslearn.algorithms.conjugate import Conjugate
from bayeslearn.algorithms.ensemble import Composite, Ensemble
from bayeslearn.algorithms.mile import MILE
from bayeslearn.channels_last import channels_last
from bayeslearn.data.rows import Batch, Data, check_data, join_batches, weights_of
from bayeslearn.errors import ArgumentError, Shown, refuse
from bayeslearn.families import Draws, FullGaussian, Mixture, Point
from bayeslearn.families.base import Gaussian
from bayeslearn.families.student import ConjugateFamily, ConjugatePrior
from bayeslearn.inference.arguments import check_algorithm
from bayeslearn.inference.options import to_layout
from bayeslearn.inference.request import Request
from bayeslearn.inference.run import RunResult, infer
from bayeslearn.models.priors.base import BoundPrior
from bayeslearn.models.priors.correlated import LowRankPrior
from bayeslearn.models.priors.gaussian import GaussianPrior
from bayeslearn.models.target import Target, check_like_training
from bayeslearn.precision import double_precision
from bayeslearn.results.psis import psis
from bayeslearn.tree import Array, PyTree

if TYPE_CHECKING:
    from bayeslearn.results.posterior import Posterior

MAX_KHAT = 0.7  # beyond it importance weights are not to be believed (Vehtari et al. 2024)
FULL_LIMIT = 512  # weights up to which the draws' covariance is a whole matrix
RANK = 50
LEAST_OWN = 0.01  # share of a weight's variance that a low-rank covariance leaves to it alone
DRAWS_AT_ONCE = 64


@double_precision
def update(
    posterior: Posterior,
    new_data: Data,
    *,
    algorithm: Algorithm | str | None = None,
    seed: int | None = None,
    history: Data | None = None,
    **fit_options: Any,
) -> RunResult | dict[str, Any]:
    """The posterior after `new_data`; see `Posterior.update`.

    The result of a new run, or the fields that change where nothing was run.
    """
    target, family = posterior.target, posterior.family
    if target.is_density:
        raise ArgumentError("A bare log-density has no data, and so no update.")
    algorithm = posterior.algorithm if algorithm is None else check_algorithm(algorithm)
    seed = posterior.seed + 1 if seed is None else seed
    if isinstance(family, Point):
        refuse(
            "posterior",
            Shown(f"a point by {posterior.algorithm.name}"),
            "have uncertainty, to be the prior of new data",
            "Fit with bl.Laplace() or bl.VOGN() instead.",
        )
    if isinstance(family, Mixture) and any(isinstance(q, Point) for q in family.members):
        refuse(
            "posterior",
            Shown(f"{family.num_members} points by {posterior.algorithm.name}"),
            "have members with uncertainty, to be the prior of new data",
            "Fit members that have it, as bl.Ensemble(member=bl.VOGN()), or again on all rows.",
        )
    batch = _rows(target, new_data, "new_data")
    if fit_options.pop("checkpoint", None) is not None:
        refuse("checkpoint", Shown("a folder"), "be left out: an update cannot be resumed")
    layout = to_layout(fit_options.pop("devices", None))
    options = {"seed": seed, "layout": layout, **fit_options}
    if isinstance(family, Draws):
        old = None if history is None else _rows(target, history, "history")
        return _update_draws(posterior, family, batch, algorithm, old, options)
    if history is not None:
        shown = Shown("old data")
        refuse("history", shown, f"be left out: {posterior.algorithm.name} left no draws")
    if isinstance(family, Mixture):
        return _update_members(posterior, family, batch, algorithm, options)
    if isinstance(algorithm, Composite):
        shown = Shown(f"{algorithm.name} after {posterior.algorithm.name}")
        refuse("algorithm", shown, "be of one run: its members start from new initialisations")
    return _update_family(posterior, batch, algorithm, options)


def _update_family(
    posterior: Posterior, batch: Batch, algorithm: Algorithm, options: dict[str, Any]
) -> RunResult:
    """A run on new rows, whose prior is the family."""
    family = posterior.family
    prior, note = _as_prior(posterior, algorithm)
    start = family if isinstance(family, Gaussian) else family.mean
    new = _renewed(_taught(posterior), prior, batch, family.mean)
    return _rerun(new, algorithm, start, options, note)


def _update_members(
    posterior: Posterior,
    family: Mixture,
    batch: Batch,
    algorithm: Algorithm,
    options: dict[str, Any],
) -> RunResult:
    """Each member is the prior of its own run on the new rows."""
    own = algorithm.member if isinstance(algorithm, Composite) else algorithm
    if own.capabilities.is_sampler:
        must = "be a method whose members have an approximation"
        refuse("algorithm", Shown(f"{own.name} for members of a mixture"), must)
    runs = []
    for number, member in enumerate(family.members):
        seed = int(np.random.SeedSequence([options["seed"], number]).generate_state(1)[0])
        one = dataclasses.replace(posterior, family=member, algorithm=own)
        runs.append(_update_family(one, batch, own, options | {"seed": seed}))
    notes = dict.fromkeys(note for run in runs for note in run.notes)
    phases = [
        phase._replace(name=phase.name.replace("main", f"main/member {number}", 1))
        for number, run in enumerate(runs)
        for phase in run.phases
    ]
    return RunResult(
        target=_renewed(_taught(posterior), _moments(posterior), batch, family.mean),
        algorithm=Ensemble(num_members=len(runs), member=own),
        family=Mixture(tuple(run.family for run in runs)),
        state=tuple(run.state for run in runs),
        trace={},
        elbo=None,
        stopped=f"{len(runs)} members were updated.",
        notes=("Updated member by member, with equal weights as before.", *notes),
        seed=options["seed"],
        wall_time=sum(run.wall_time for run in runs),
        compile_time=sum(run.compile_time for run in runs),
        phases=tuple(phases),
    )


def _rows(target: Target, data: Data, name: str) -> Batch:
    """Rows like those of the first fit, read by the likelihood that was bound there."""
    x, y, weight = check_data(data, name)
    check_like_training(x, target)
    return target.batch((x, target.likelihood.check(y)), weight)


def _taught(posterior: Posterior) -> Target:
    """The old target, with a likelihood that knows what the old rows taught it."""
    target, family = posterior.target, posterior.family
    own = (family.draws if isinstance(family, Draws) else family.mean)["likelihood"]
    likelihood = target.likelihood.as_prior(target.num_data, own)
    return dataclasses.replace(target, likelihood=likelihood)


def _renewed(target: Target, prior: BoundPrior | None, data: Batch, start: PyTree) -> Target:
    """The density of the parameters given `data` and a prior that knows the rest."""
    return dataclasses.replace(
        target,
        prior=prior,
        data=data,
        num_data=jnp.sum(weights_of(data)),
        start=tree.cast(start, jnp.promote_types(target.dtype, jnp.float32)),
    )


def _rerun(
    target: Target, algorithm: Algorithm, start: PyTree, options: dict[str, Any], note: str
) -> RunResult:
    found = infer(Request(target, algorithm, None, **{"init": start, **options}))
    return found._replace(notes=(note, *found.notes))


def _as_prior(posterior: Posterior, algorithm: Algorithm) -> tuple[BoundPrior, str]:
    family, before = posterior.family, posterior.algorithm.name
    if isinstance(algorithm, Conjugate) and "log_noise_scale" in family.mean["likelihood"]:
        if isinstance(family, ConjugateFamily):
            prior = ConjugatePrior(family.exact, family.order)
            return prior, "Updated exactly, in closed form."
        refuse(
            "algorithm",
            Shown("conjugate"),
            f"be another one after {before}: its prior of weights and unknown noise has a form of"
            " its own",
        )
    if isinstance(family, Gaussian):
        return family.to_prior(), f"The prior is the q that {before} left."
    return _moments(posterior), (
        f"The prior has the mean and variance that {before} left for each weight, without"
        " correlations; a weight without variance has that of the first prior."
    )


def _moments(posterior: Posterior) -> GaussianPrior:
    """Independent Gaussians with the family's means and variances.

    Weights that do not vary, such as the biases of a network under dropout, were given no doubt
    by the method and not by the data: they keep the old prior's.
    """
    family = posterior.family
    variance = jax.tree.map(jnp.square, tree.double(family.std))
    assert posterior.target.prior is not None
    _, prec = posterior.target.prior.broadcast(tree.double(family.mean))
    prec = jax.tree.map(lambda v, p: jnp.where(v > 0, 1.0 / v, p), variance, prec)
    return GaussianPrior(family.mean, prec)


def _update_draws(
    posterior: Posterior,
    draws: Draws,
    batch: Batch,
    algorithm: Algorithm,
    history: Batch | None,
    options: dict[str, Any],
) -> RunResult | dict[str, Any]:
    target = posterior.target
    assert target.data is not None
    k_hat = np.inf
    is_sampler = algorithm.capabilities.is_sampler or isinstance(algorithm, MILE)
    if is_sampler:
        is_chain = "log_density" in posterior.trace  # not the result of an earlier update
        weighed, k_hat, effective = reweighed(draws, target, batch, options["seed"], is_chain)
        if k_hat < MAX_KHAT:
            note = (
                f"Updated by importance weights: Pareto k-hat {k_hat:.2f}, worth {effective:.0f} of"
                f" {draws.num_draws} draws."
            )
            # A loaded posterior has no rows to join; it goes on without.
            data = join_batches(target.data, batch) if len(target.data.y) else target.data
            everything = _renewed(target, target.prior, data, draws.mean)
            num_data = target.num_data + jnp.sum(weights_of(batch))
            return {
                "target": dataclasses.replace(everything, num_data=num_data),
                "family": weighed,
                "trace": {},
                "stopped": "Nothing was run.",
                "notes": (note,),
                "seed": options["seed"],
                "wall_time": 0.0,
                "compile_time": 0.0,
                "phases": (),
            }
    why = f"Pareto k-hat was {k_hat:.2f}" if is_sampler else "It is not a sampler"
    if isinstance(algorithm, MILE):
        refuse(
            "new_data",
            Shown(f"rows that the draws cannot be reweighted for (Pareto k-hat {k_hat:.2f})"),
            "tell little beside the old rows, for chains from independent starts",
            "Fit again on all rows.",
        )
    taught = _taught(posterior)
    if target.likelihood.is_marginal:  # drawn beside the parameters, and not one of them
        draws = Draws({**draws.draws, "likelihood": target.likelihood.init()})
        target = dataclasses.replace(target, likelihood=target.likelihood.conditional())
    if history is not None:
        seen, num_rows = float(target.num_data), float(jnp.sum(weights_of(history)))
        if not np.isclose(num_rows, seen):
            refuse(
                "history",
                Shown(f"{num_rows:g} rows"),
                f"be the {seen:g} rows of this posterior's likelihood",
                "Rows before them are in its prior, if it was itself made by an update.",
            )
        last = jax.tree.map(lambda w: w[-1], draws.flat())
        everything = _renewed(target, target.prior, join_batches(history, batch), last)
        return _rerun(everything, algorithm, last, options, f"{why}: rerun on all data.")
    gaussian = gaussian_of(draws)
    is_full = isinstance(gaussian, FullGaussian)
    kind = "full" if is_full else "diagonal-plus-low-rank"
    note = f"{why}: rerun with a {kind} Gaussian of the old draws as the prior."
    prior = gaussian.to_prior() if isinstance(gaussian, FullGaussian) else gaussian
    new = _renewed(taught, prior, batch, draws.mean)
    return _rerun(new, algorithm, gaussian if is_full else draws.mean, options, note)


def reweighed(
    draws: Draws, target: Target, batch: Batch, seed: int, is_chain: bool = False
) -> tuple[Draws, float, float]:
    """Draws resampled by the likelihood of new rows, Pareto's k-hat, and the effective number.

    A draw that is there n times counts once with weight n, so that k-hat knows what earlier
    updates cost; in a chain repeats are proposals that were rejected, and cost nothing.
    """
    distinct, counts = draws.flat(), np.ones(draws.num_draws, np.intp)
    if not is_chain:
        matrix = np.asarray(draws.matrix())
        _, chosen, counts = np.unique(matrix, axis=0, return_index=True, return_counts=True)
        distinct = jax.tree.map(lambda w: w[chosen], distinct)
    log_weights = np.asarray(_log_likelihoods(target, distinct, batch)) + np.log(counts)
    log_weights, k_hat = psis(log_weights)
    weights = np.exp(log_weights)  # normalised
    # Systematic: one random number, and no draw is taken more often than its weight says.
    offset = float(jax.random.uniform(jax.random.key(seed)))
    points = (np.arange(draws.num_draws) + offset) / draws.num_draws
    taken = np.minimum(np.searchsorted(np.cumsum(weights), points), len(weights) - 1)
    taken = np.random.default_rng(seed).permutation(taken)  # so that chains are alike
    leads = (draws.num_chains, draws.num_draws // draws.num_chains)
    new = jax.tree.map(lambda w: w[taken].reshape(*leads, *w.shape[1:]), distinct)
    return Draws(new), float(k_hat), float(1.0 / np.sum(weights**2))


@jax.jit
@channels_last
def _log_likelihoods(target: Target, draws: PyTree, batch: Batch) -> Array:
    def one(params: PyTree) -> Array:
        return jnp.sum(target.log_likelihood(params, batch))

    return jax.lax.map(one, draws, batch_size=DRAWS_AT_ONCE)


def gaussian_of(draws: Draws) -> FullGaussian | LowRankPrior:
    """A Gaussian with the draws' mean and covariance.

    Few weights: the whole matrix, its correlations shrunken towards none by as much as their own
    sampling error says (Schaefer and Strimmer 2005). Many: the first principal components of the
    correlations, and each weight's own rest.
    """
    matrix = np.asarray(draws.matrix(), np.float64)
    num, k = matrix.shape
    mean, std = matrix.mean(axis=0), matrix.std(axis=0, ddof=1)
    if num < 3 or not np.all(std > 0):
        refuse("posterior", Shown(f"{num} draws"), "have draws that differ in every weight")
    like = tree.double(draws.mean)
    z = (matrix - mean) / std
    if k <= FULL_LIMIT:
        return FullGaussian.from_cov(like, jnp.asarray(shrunken(z) * np.outer(std, std)))
    _, values, vectors = np.linalg.svd(z / np.sqrt(num - 1), full_matrices=False)
    factor = vectors[:RANK].T * values[:RANK]
    own = np.maximum(1.0 - np.sum(factor**2, axis=1), LEAST_OWN)
    variance, scaled = jnp.asarray(own * std**2), jnp.asarray(factor * std[:, None])
    return LowRankPrior.from_factor(like, variance, scaled)


def shrunken(z: np.ndarray) -> np.ndarray:
    """Correlation of standardised rows, its entries off the diagonal shrunken towards zero."""
    num = len(z)
    correlation = z.T @ z / (num - 1)
    squares = (z**2).T @ z**2  # sum over rows of (z_i z_j)^2
    variance = num / (num - 1) ** 3 * (squares - (z.T @ z) ** 2 / num)
    off = ~np.eye(z.shape[1], dtype=bool)
    share = np.sum(variance[off]) / max(np.sum(correlation[off] ** 2), 1e-300)
    shrink = 1.0 - np.clip(share, 0.0, 1.0)
    return np.where(off, shrink * correlation, 1.0)
