"""bayeslearn, and the floors it is held against."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path

import jax
import numpy as np
import steps as stepping
from faithfulness import labour_problem
from hmc_gradients import bare_loop, make_target

import bayeslearn as bl
from bayeslearn import tree
from peers import problems

PACKAGES = ("bayeslearn", "jax", "jaxlib", "numpy")
METHODS = {
    "bayes-by-backprop": lambda: bl.BayesByBackprop(num_draws=1, kl="closed-form"),
    "vadam": lambda: bl.Vadam(num_draws=1, squares="mean"),
    "vogn": lambda: bl.VOGN(num_draws=1),
}


def step(turns, method: str, steps: int) -> None:
    """Steps of the loop that `fit` compiles; "adam" is `optax.adam` in a `lax.scan`."""
    given = *stepping.problem(list(problems.MLP), problems.MLP_ROWS), problems.BATCH, steps
    if method == "adam":
        turn = stepping.adam_steps(*given)
    else:
        turn = stepping.our_steps(METHODS[method](), *given)
    turn()
    while turns.wait(steps):
        turn()


def gradients(turns, count: int) -> None:
    """A bare loop of the log-joint's gradients."""
    target, params = make_target()
    with jax.enable_x64(True):
        position = tree.double(params)
        jax.block_until_ready(bare_loop(target, position, count))
        while turns.wait(count):
            jax.block_until_ready(bare_loop(target, position, count))


def hmc(turns, draws: int, chains: int = 1) -> None:
    """Draws of `fit`, with all that it does around the compiled calls."""
    target, params = make_target()
    algorithm = bl.HMC(
        num_leapfrog=problems.LEAPFROG,
        step_size=problems.STEP_SIZE,
        jitter=0.0,
        mass_matrix="identity",
        num_warmup=0,
        num_samples=1_000_000,
    )
    units = chains * draws * problems.LEAPFROG

    def between_chunks(told) -> bool:
        if told.algorithm != "hmc" or told.step % draws:
            return False
        return not turns.wait(units, acceptance=told.metrics["acceptance"])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bl.fit(
            target,
            algorithm,
            seed=problems.SEED,
            params=params,
            num_chains=chains,
            progress=False,
            callback=between_chunks,
        )


def smallest_ess(draws: np.ndarray) -> float:
    """Bulk effective sample size of (chains, draws, weights): that of the worst weight."""
    import arviz

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(min(arviz.ess(draws[..., i], method="bulk") for i in range(draws.shape[-1])))


def nuts(turns, data: str, warmup: int, samples: int, chains: int) -> None:
    model, rows, *_ = labour_problem(Path(data))
    algorithm = bl.NUTS(num_warmup=warmup, num_samples=samples)

    def halfway(told) -> None:
        if told.algorithm == "nuts" and told.step == warmup:
            turns.mark("warmup_seconds")

    def run(seed: int) -> dict:
        posterior = bl.fit(
            model,
            algorithm,
            rows,
            seed=seed,
            num_chains=chains,
            progress=False,
            callback=halfway,
        )
        turns.end()
        draws = np.concatenate(
            [np.reshape(leaf, (chains, samples, -1)) for leaf in jax.tree.leaves(posterior.draws)],
            axis=-1,
        )
        gradients = float(np.sum(posterior.trace["num_gradients"]))
        return {"ess": smallest_ess(draws), "gradients": gradients}

    each_seed(turns, run)


def emgvb(turns, data: str, steps: int) -> None:
    model, rows, *_ = labour_problem(Path(data))

    def run(seed: int) -> dict:
        posterior = bl.fit(model, bl.EMGVB(), rows, seed=seed, num_steps=steps, progress=False)
        turns.end()
        family = posterior.family
        return {"gap": problems.labour_gap(family.mean_vector(), family.factor, *rows)}

    each_seed(turns, run)


def each_seed(turns, run) -> None:
    """A turn is a whole run with a seed of its own; the first one compiles."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told = run(problems.SEED)
        for seed in itertools.count(problems.SEED + 1):
            if not turns.wait(**told):
                return
            told = run(seed)
