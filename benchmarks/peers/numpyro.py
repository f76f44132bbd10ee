"""NumPyro: HMC of a network, NUTS and full-rank SVI of the labour posterior, SVI of an MLP."""

from __future__ import annotations

import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import HMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from peers import problems
from peers.ours import each_seed, smallest_ess

PACKAGES = ("numpyro", "jax", "jaxlib", "numpy")


def layer(name: str, inputs: int, outputs: int, scale: float):
    weight = numpyro.sample(
        f"{name}_weight", dist.Normal(0, scale).expand([inputs, outputs]).to_event(2)
    )
    bias = numpyro.sample(f"{name}_bias", dist.Normal(0, scale).expand([outputs]).to_event(1))
    return weight, bias


def network(x, y):
    first, bias = layer("first", problems.INPUTS, problems.HIDDEN, problems.WEIGHT_SCALE)
    second, offset = layer("second", problems.HIDDEN, 1, problems.WEIGHT_SCALE)
    log_noise = numpyro.sample("log_noise", dist.Normal(jnp.log(jnp.std(y)), 1.0))
    outputs = jnp.tanh(x @ first + bias) @ second + offset
    numpyro.sample("y", dist.Normal(outputs[:, 0], jnp.exp(log_noise)), obs=y)


def labour(x, y):
    w = numpyro.sample("w", dist.Normal(0, problems.LABOUR_SCALE).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def classifier(x, y, num_data):
    for i, (inputs, outputs) in enumerate(itertools.pairwise(problems.MLP)):
        weight, bias = layer(f"layer{i}", inputs, outputs, 1.0)
        x = jax.nn.relu(x) if i else x
        x = x @ weight + bias
    with numpyro.plate("rows", num_data, subsample_size=len(y)):
        numpyro.sample("y", dist.Categorical(logits=x), obs=y)


def chains_of(make, rows: tuple, chains: int, warmup: int, parallel: str):
    """First states of all chains, and run(states, count): what NumPyro's MCMC does around a kernel.

    `MCMC.run` compiles anew for every seed, which would hide the sampler behind the compiler.
    """
    keys = jax.random.split(jax.random.key(problems.SEED), chains)
    kernel = make()
    first = kernel.init(keys, warmup, None, rows, {})
    if parallel == "pmap":  # a single chain's kernel, on a device of its own
        kernel = make()
        kernel.init(keys[0], warmup, None, rows, {})

    def run(states, count):
        def one(state, _):
            state = kernel.sample(state, rows, {})
            return state, (state.z, state.num_steps, state.accept_prob)

        return jax.lax.scan(one, states, length=count)

    if parallel == "pmap":
        return first, jax.pmap(run, static_broadcasted_argnums=1)
    return first, jax.jit(run, static_argnums=1)


def hmc(turns, draws: int, chains: int = 1, parallel: str = "vmap") -> None:
    def kernel():
        return HMC(
            network,
            step_size=problems.STEP_SIZE,
            num_steps=problems.LEAPFROG,
            trajectory_length=None,
            adapt_step_size=False,
            adapt_mass_matrix=False,
        )

    rows = tuple(map(jnp.asarray, problems.regression_rows()))
    states, run = chains_of(kernel, rows, chains, 0, parallel)
    while True:
        states, (positions, taken, acceptance) = run(states, draws)
        jax.tree.map(np.asarray, positions)
        if not turns.wait(float(jnp.sum(taken)), acceptance=float(jnp.mean(acceptance))):
            return


def nuts(turns, data: str, warmup: int, samples: int, chains: int, parallel: str) -> None:
    rows = tuple(map(jnp.asarray, problems.labour_rows(data)))
    first, run_chains = chains_of(lambda: NUTS(labour), rows, chains, warmup, parallel)

    def run(seed: int) -> dict:
        keys = jax.random.split(jax.random.key(seed), chains)
        states, _ = run_chains(first._replace(rng_key=keys), warmup)
        jax.block_until_ready(states)
        turns.mark("warmup_seconds")
        _, (positions, taken, _) = run_chains(states, samples)
        draws = np.asarray(positions["w"])
        turns.end()
        if parallel != "pmap":  # (draws, chains, weights)
            draws = np.swapaxes(draws, 0, 1)
        return {"ess": smallest_ess(draws), "gradients": float(jnp.sum(taken))}

    each_seed(turns, run)


def full_rank(data: str, steps: int, draws: int):
    """run(key, learning rate): mean and factor after Adam, whose rate falls to nothing."""
    x, y = problems.labour_rows(data)
    rows = jnp.asarray(x), jnp.asarray(y)
    guide = AutoMultivariateNormal(labour)

    @jax.jit
    def run(key, rate):
        def falling(step):
            return rate * 0.5 * (1.0 + jnp.cos(jnp.pi * step / steps))

        svi = SVI(labour, guide, numpyro.optim.Adam(falling), Trace_ELBO(num_particles=draws))
        state = svi.init(key, *rows)
        state, _ = jax.lax.scan(lambda s, _: svi.update(s, *rows), state, length=steps)
        found = svi.get_params(state)
        return found["auto_loc"], found["auto_scale_tril"]

    return run, (x, y)


def svi_full(turns, data: str, steps: int, draws: int, rate: float) -> None:
    run_once, rows = full_rank(data, steps, draws)

    def run(seed: int) -> dict:
        found = jax.block_until_ready(run_once(jax.random.key(seed), rate))
        turns.end()
        return {"gap": problems.labour_gap(*found, *rows)}

    each_seed(turns, run)


def tune_full(turns, data: str, seeds: int) -> None:
    """The shortest run within 0.02 nats for every seed, of many settings; it needs no turns."""
    found = []
    for draws, steps in itertools.product((1, 4, 10, 50), (250, 500, 1000, 2000)):
        run, rows = full_rank(data, steps, draws)
        for rate in (0.01, 0.03, 0.1):
            jax.block_until_ready(run(jax.random.key(0), rate))
            gaps, seconds = [], []
            for seed in range(1, seeds + 1):
                began = time.perf_counter()
                q = jax.block_until_ready(run(jax.random.key(seed), rate))
                seconds.append(time.perf_counter() - began)
                gaps.append(problems.labour_gap(*q, *rows))
            best = {"draws": draws, "steps": steps, "rate": rate, "worst_gap": max(gaps)}
            found.append(best | {"seconds_each": float(np.median(seconds))})
    turns.wait(found=found)


def svi_mlp(turns, steps: int) -> None:
    """AutoNormal, one draw, `svi.update` in a compiled scan."""
    x, y = problems.image_rows()
    x, y = jnp.asarray(x), jnp.asarray(y, jnp.int32)
    svi = SVI(classifier, AutoNormal(classifier), numpyro.optim.Adam(1e-3), Trace_ELBO())
    order = jax.random.permutation(jax.random.key(problems.SEED), len(x))
    num_batches = len(x) // problems.BATCH

    def batch(t):
        rows = jax.lax.dynamic_slice(
            order, ((t % num_batches) * problems.BATCH,), (problems.BATCH,)
        )
        return x[rows], y[rows]

    @jax.jit
    def run(state, begin):
        def one(state, t):
            return svi.update(state, *batch(t), num_data=len(x))

        return jax.lax.scan(one, state, begin + jnp.arange(steps))

    state, done = svi.init(jax.random.key(problems.SEED), *batch(0), num_data=len(x)), 0
    while True:
        state, losses = jax.block_until_ready(run(state, done))
        done += steps
        if not turns.wait(steps, last=float(losses[-1])):
            return
