"""Whether to believe a run: R-hat, effective sample sizes, simulation-based calibration, ArviZ.

R-hat and ESS are ArviZ's (rank-normalised, split). Hidden units of a network can be swapped
without changing what it predicts, so chains may sit in different copies of the same mode: R-hat
of single weights is then large although the predictions agree. Judge by the predictions.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayeslearn import tree
from bayeslearn.errors import ArgumentError, Shown, refuse
from bayeslearn.families import Draws, Point
from bayeslearn.precision import double_precision
from bayeslearn.tree import PyTree

ROWS = 20  # training rows whose predictions are looked at
WEIGHTS = 200  # single weights looked at
MAX_RHAT = 1.05
MIN_ESS_PER_CHAIN = 50


class Diagnostics(NamedTuple):
    """R-hat, bulk and tail ESS of some weights, of predictions at training rows, and of the
    log-density; `warning` is empty if the chains have mixed."""

    rhat_weights: np.ndarray
    ess_bulk_weights: np.ndarray
    ess_tail_weights: np.ndarray
    rhat_predictions: np.ndarray
    ess_bulk_predictions: np.ndarray
    ess_tail_predictions: np.ndarray
    rhat_log_density: float
    divergences: int
    warning: str


def arviz() -> Any:
    """ArviZ, without its notice of future changes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz as az
    return az


def convergence(
    values: np.ndarray, has_tail: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """R-hat, bulk and tail ESS of quantities (chains, draws, quantities).

    NaN where ArviZ cannot tell: fewer than four draws, and R-hat of a single chain. The tail's
    takes as long as the other two together, and is left out if not asked for.
    """
    chains, draws, num = np.shape(values)
    unknown = np.full(num, np.nan)
    if draws < 4:
        return unknown, unknown, unknown
    az = arviz()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = az.convert_to_dataset({"q": np.asarray(values)})
        rhat = az.rhat(data)["q"].to_numpy() if chains > 1 else unknown
        bulk = az.ess(data, method="bulk")["q"].to_numpy()
        tail = az.ess(data, method="tail")["q"].to_numpy() if has_tail else unknown
    return rhat, bulk, tail


@double_precision
def diagnose(posterior: Any) -> Diagnostics:
    """Has this sampler mixed?"""
    if posterior.draws is None:
        raise ArgumentError(
            f"{posterior.algorithm.name} is not a sampler: look at posterior.trace['eval_elbo']."
        )
    if "log_density" not in posterior.trace:
        raise ArgumentError("These draws are no chains, they were reweighed: see posterior.notes.")
    chains, kept = posterior.trace["log_density"].shape
    weights = convergence(_some_weights(posterior))
    values, what = _judged(posterior)
    predictions = weights if values is None else convergence(values)
    log_density = posterior.trace["log_density"][:, :, None]
    rhat_density = float(convergence(log_density, has_tail=False)[0][0])
    divergences = int(np.sum(posterior.trace.get("diverging", 0)))
    warning = _warning(posterior.algorithm.name, what, predictions, chains, kept)
    return Diagnostics(*weights, *predictions, rhat_density, divergences, warning)


@double_precision
def not_mixed(posterior: Any) -> str:
    """The warning of `diagnose` alone, at a fraction of the time."""
    chains, kept = posterior.trace["log_density"].shape
    if chains < 2:
        return ""
    values, what = _judged(posterior)
    values = _some_weights(posterior) if values is None else values
    told = convergence(values, has_tail=False)
    return _warning(posterior.algorithm.name, what, told, chains, kept)


def _some_weights(posterior: Any) -> np.ndarray:
    """(chains, draws, weights)"""
    matrix = np.asarray(posterior.family.matrix())
    spaced = np.unique(np.linspace(0, matrix.shape[-1] - 1, WEIGHTS).round().astype(int))
    return matrix.reshape(*posterior.trace["log_density"].shape, -1)[:, :, spaced]


def _judged(posterior: Any) -> tuple[np.ndarray | None, str]:
    """What says whether chains have mixed, and its name; None: the weights of a bare density."""
    if posterior.target.is_density:
        return None, "parameters"
    outputs = posterior.row_outputs
    if outputs is None:
        outputs = outputs_at_rows(posterior.target, posterior.draws)
    return outputs, "predictions"


def outputs_at_rows(target: Any, draws: PyTree) -> np.ndarray:
    """The network at some training rows, for every draw: (chains, draws, outputs)."""
    data = target.rows()
    rows = np.linspace(0, len(data.y) - 1, min(ROWS, len(data.y))).astype(int)
    x = jax.tree.map(lambda leaf: leaf[rows], data.x)
    outputs = np.asarray(_outputs(target, draws, x))
    return outputs.reshape(*outputs.shape[:2], -1)


@jax.jit
def _outputs(target: Any, draws: PyTree, x: PyTree) -> Any:
    def chain(part: PyTree) -> Any:
        return jax.lax.map(lambda params: target.outputs(params, x), part)

    return jax.lax.map(chain, draws)


def _warning(name: str, what: str, told: Any, chains: int, kept: int) -> str:
    rhat, bulk, _ = told
    # Constant quantities have no R-hat; they cannot disagree either.
    worst = np.nan if np.all(np.isnan(rhat)) else float(np.nanmax(rhat))
    fewest = np.nan if np.all(np.isnan(bulk)) else float(np.nanmin(bulk))
    if chains < 2:
        return ""
    if worst > MAX_RHAT:
        return (
            f"The chains of {name} have not mixed: R-hat of the {what} is up to {worst:.3g}"
            f" (above {MAX_RHAT}). Do not trust the spread yet; run longer (num_warmup,"
            " num_samples, thin), or use nuts or a variational method."
        )
    if fewest < MIN_ESS_PER_CHAIN * chains:
        return (
            f"The {chains * kept} draws of {name} are worth only {fewest:.0f} independent ones for"
            f" some {what}. Means are usable, tails are not; run longer (num_samples, thin)."
        )
    return ""


# ArviZ's names for what our samplers report
ARVIZ_NAMES = {
    "log_density": "lp",
    "acceptance": "acceptance_rate",
    "num_gradients": "n_steps",
}


@double_precision
def to_arviz(posterior: Any, *, num_samples: int = 1000, seed: int = 0) -> Any:
    """InferenceData with posterior, log_likelihood, observed_data and sample_stats.

    A sampler gives its own chains, other methods `num_samples` draws of q as one chain (a point
    one). Variables carry the names of the leaves. sample_stats holds what a sampler said of each
    draw, or the lower bound and its parts over the steps at which they were measured.
    """
    family, target = posterior.family, posterior.target
    if isinstance(family, Draws):
        chains, num = family.num_chains, family.num_draws // family.num_chains
    else:
        chains, num = 1, 1 if isinstance(family, Point) else num_samples
    draws = posterior.sample(jax.random.key(seed), chains * num)

    def by_chain(values: Any) -> np.ndarray:
        return np.asarray(values).reshape(chains, num, *np.shape(values)[1:])

    az = arviz()
    weights = dict(zip(tree.leaf_names(draws), jax.tree.leaves(draws), strict=True))
    groups = {"posterior": az.dict_to_dataset({n: by_chain(w) for n, w in weights.items()})}
    if not target.is_density and len(target.data.y):  # a loaded posterior has no rows
        y = np.asarray(target.data.y)
        predictive = posterior.predict(target.data.x, num_samples=chains * num, seed=seed)
        terms = {"y": by_chain(predictive.log_prob_by_draw(y))}
        observed = {"y": predictive.like_mean(y)}
        rows = {"y": ["row"]}
        columns = {"y": ["row", "column"][: observed["y"].ndim]}
        groups["log_likelihood"] = az.dict_to_dataset(terms, dims=rows)
        groups["observed_data"] = az.dict_to_dataset(observed, dims=columns, default_dims=[])
    stats, steps = posterior.trace, posterior.trace.get("eval_step")
    if steps is not None:
        found = {n.removeprefix("eval_"): v for n, v in stats.items() if n.startswith("eval_")}
        del found["step"]
        groups["sample_stats"] = az.dict_to_dataset(
            found, dims={n: ["step"] for n in found}, coords={"step": steps}, default_dims=[]
        )
    elif stats:
        told = {n: v for n, v in stats.items() if not n.startswith("warmup_")}
        groups["sample_stats"] = az.dict_to_dataset(
            {
                ARVIZ_NAMES.get(n, n): v.astype(bool) if n == "diverging" else v
                for n, v in told.items()
            }
        )
    return az.InferenceData(
        attrs={"algorithm": posterior.algorithm.name, "stopped": posterior.stopped}, **groups
    )


def all_rows(posterior: Any) -> Any:
    """The data behind a posterior, refused where only a part of them is at hand."""
    target = posterior.target
    if target.is_density:
        raise ArgumentError("A bare log-density has no rows to predict.")
    data = target.rows()
    if len(data.y) != round(float(target.num_data)):
        raise ArgumentError(
            f"This needs all {float(target.num_data):.0f} rows, and the posterior of an iterable"
            f" keeps only {len(data.y)} of them. Fit arrays (x, y)."
        )
    return data


def check_generative(target: Any) -> None:
    """Refuse a model from whose prior no data can be drawn."""
    if target.likelihood.refreshes:
        must = "hold all its unknowns as parameters, to be drawn from the prior"
        refuse("model", Shown(f"one with {type(target.likelihood).__name__}()"), must)


class Calibration(NamedTuple):
    """Result of simulation-based calibration; `ranks` lie in 0..num_samples."""

    ranks: np.ndarray  # (data sets, quantities)
    num_samples: int
    p_values: np.ndarray  # of a chi-square test of uniform ranks, one per quantity


@double_precision
def simulation_based_calibration(
    model: Any,
    algorithm: Any,
    data: tuple[Any, Any],
    *,
    num_datasets: int,
    seed: int,
    num_samples: int = 99,
    num_bins: int = 10,
    **fit_options: Any,
) -> Calibration:
    """Ranks of true weights among posterior draws, over data sets made by the model itself.

    True weights are drawn from the prior, observations from the likelihood at `data`'s inputs,
    and the posterior is inferred from them. If the inference is right every rank is equally
    likely (Talts et al. 2018). `data`'s observations only fix shapes and the noise prior.
    """
    from bayeslearn.fitting import fit

    if num_datasets < num_bins:
        refuse("num_datasets", num_datasets, f"be at least num_bins ({num_bins})")
    root = jax.random.key(seed)
    target, params = model.bind(data, root)
    check_generative(target)
    ranks = []
    for index in range(num_datasets):
        truth, simulated = _simulate(target, params, jax.random.fold_in(root, index))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = fit(simulated, algorithm, seed=seed + index, params=params, **fit_options)
        draws = posterior.sample(jax.random.fold_in(root, index), num_samples)
        below = jax.vmap(tree.ravel)(draws) < tree.ravel(truth)
        ranks.append(np.asarray(jnp.sum(below, axis=0)))
    table = np.stack(ranks)
    return Calibration(table, num_samples, _uniformity(table, num_samples, num_bins))


@jax.jit
def _simulate(target: Any, params: PyTree, key: Any) -> tuple[PyTree, Any]:
    key_truth, key_y = jax.random.split(key)
    truth = target.prior.sample(key_truth, params)
    outputs = target.outputs(truth, target.data.x)
    keys = jax.random.split(key_y, len(outputs))
    y = jax.vmap(target.likelihood.sample, (0, 0, None))(keys, outputs, truth["likelihood"])
    data = target.data._replace(y=y.astype(target.data.y.dtype))
    from equinox import tree_at

    return truth, tree_at(lambda t: t.data, target, data)


def _uniformity(ranks: np.ndarray, num_samples: int, num_bins: int) -> np.ndarray:
    from scipy.stats import chisquare

    edges = np.linspace(0, num_samples + 1, num_bins + 1)
    expected = np.diff(np.ceil(edges)) / (num_samples + 1) * len(ranks)
    return np.array(
        [chisquare(np.histogram(column, bins=edges)[0], expected).pvalue for column in ranks.T]
    )
