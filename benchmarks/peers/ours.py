"""bayeslearn, and the floors it is compared with."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import steps as stepping
from hmc_gradients import bare_loop, make_target
from peers import problems

import bayeslearn as bl
from bayeslearn import tree
from bayeslearn.families import DiagonalGaussian
from bayeslearn.inference import kernels

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

    def between_chunks(event) -> bool:
        if event.algorithm != "hmc" or event.step % draws:
            return False
        return not turns.wait(units, acceptance=event.metrics["acceptance"])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bl.fit(
            target,
            algorithm,
            seed=problems.SEED,
            init=params,
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


def labour(data: str) -> tuple[bl.Model, tuple[np.ndarray, np.ndarray]]:
    """In the default precision, as the peers are."""
    network = bl.networks.MLP([], use_bias=False)
    prior = bl.priors.Normal(scale=problems.LABOUR_SCALE)
    return bl.Model(network, bl.likelihoods.Bernoulli(), prior), problems.labour_rows(data)


def nuts(turns, data: str, warmup: int, samples: int, chains: int) -> None:
    model, rows = labour(data)
    algorithm = bl.NUTS(num_warmup=warmup, num_samples=samples)

    def halfway(event) -> None:
        if event.algorithm == "nuts" and event.step == warmup:
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


def emgvb(turns, data: str, steps: int, start: str) -> None:
    """From the published N(0, 0.05 I) and with one evaluation at the end, or with a warm start."""
    model, rows = labour(data)
    options: dict[str, Any] = {"num_steps": steps, "progress": False}
    if start == "published":
        with jax.enable_x64(True):
            zeros = jax.tree.map(np.zeros_like, model.bind(rows, jax.random.key(0))[1])
            std = jax.tree.map(lambda w: w + 0.05**0.5, zeros)
            options |= {
                "init": DiagonalGaussian(zeros, std),
                "options": bl.FitOptions(eval_every=steps),
            }

    def run(seed: int) -> dict:
        posterior = bl.fit(model, bl.EMGVB(), rows, seed=seed, **options)
        turns.end()
        family = posterior.family
        return {"gap": problems.labour_gap(family.mean_vector(), family.factor, *rows)}

    each_seed(turns, run)


def laplace(turns, covariance: str, weights: str) -> None:
    """The Gaussian at a given point, which is taken as the mode; `fit` adds the way to it."""
    model = bl.Model(
        bl.networks.MLP([problems.HIDDEN]),
        bl.likelihoods.Gaussian(noise_scale=0.3),
        bl.priors.Normal(scale=problems.WEIGHT_SCALE),
        bayesian=["layers.1.*"] if weights == "last_layer" else None,
    )
    algorithm = bl.Laplace(covariance=covariance, newton_steps=0)
    with jax.enable_x64(True):
        target, params = model.bind(problems.regression_rows(), jax.random.key(problems.SEED))
        if weights == "last_layer":
            target, params = model.freeze(target, params)
        while True:
            state = kernels.init_state(algorithm, jax.random.key(problems.SEED), target, params)
            jax.block_until_ready(state)
            size = tree.size(params)
            if not turns.wait(weights=size, log_evidence=float(state.info.log_evidence)):
                return


def predictions(rows: int, draws: int, kind: str = "classification") -> Any:
    """`posterior.predict` of a Gaussian over the large network's weights."""
    sizes = (*problems.MLP[:-1], problems.MLP[-1] if kind == "classification" else 1)
    network = bl.networks.MLP(list(sizes[1:-1]), activation="relu")
    x, y = problems.image_rows(sizes, rows)
    if kind == "classification":
        y = np.arange(rows) % sizes[-1]
        likelihood = bl.likelihoods.Categorical(sizes[-1])
    else:
        y, likelihood = x[:, 0], bl.likelihoods.Gaussian(noise_scale=0.3)
    target, params = bl.Model(network, likelihood).bind((x, y), jax.random.key(problems.SEED))
    with jax.enable_x64(True):
        family = DiagonalGaussian(params, jax.tree.map(lambda w: 0 * w + 0.01, params))
    posterior = bl.Posterior(
        target=target,
        algorithm=bl.BayesByBackprop(),
        family=family,
        state=None,
        trace={},
        elbo=None,
        stopped="",
        notes=(),
        seed=problems.SEED,
        wall_time=0.0,
        compile_time=0.0,
    )
    return lambda: posterior.predict(x, num_samples=draws), x, y


def predict(turns, rows: int, draws: int) -> None:
    predict_rows, _, _ = predictions(rows, draws)
    made = predict_rows()
    while True:
        made.__dict__.pop("_summary", None)  # is kept once it has been computed
        total = float(made.probs.sum())
        if not turns.wait(rows * draws, total=total):
            return


def products(turns, rows: int, draws: int) -> None:
    """The same draws through bare matrix products, one draw after the other."""
    predict_rows, x, _ = predictions(rows, draws)
    layers = jax.tree.map(jnp.float32, predict_rows()._draws["network"]["layers"])

    @jax.jit
    def run(layers, x):
        def one(layers):
            h = x
            for i, layer in enumerate(layers):
                h = jax.nn.relu(h) if i else h
                h = h @ layer.weight.T + layer.bias
            return h

        def add(total, layers):
            return total + one(layers), None

        return jax.lax.scan(add, jnp.zeros((rows, problems.MLP[-1])), layers)[0]

    x = jnp.asarray(x)
    while True:
        jax.block_until_ready(run(layers, x))
        if not turns.wait(rows * draws):
            return


def memory(turns, rows: int, draws: int, what: str) -> None:
    """Megabytes that a prediction takes at its peak, beyond the draws and the rows."""
    kind = "regression" if what == "interval" else "classification"
    predict_rows, _, y = predictions(rows, draws, kind)
    made = predict_rows()
    jax.block_until_ready(made._draws)
    while True:
        made.__dict__.pop("_summary", None)
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = _status("VmRSS")
        if what == "log_prob":
            made.log_prob(y)
        elif what == "mean":
            made.mean  # noqa: B018
        else:
            getattr(made, what)()
        if not turns.wait(megabytes=(_status("VmHWM") - before) / 1024):
            return


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def each_seed(turns, run) -> None:
    """A turn is a whole run with a seed of its own; the first one compiles."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metrics = run(problems.SEED)
        for seed in itertools.count(problems.SEED + 1):
            if not turns.wait(**metrics):
                return
            metrics = run(seed)
