"""BlackJAX: HMC of a network, NUTS of the labour posterior; its kernels in a compiled scan."""

from __future__ import annotations

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from hmc_gradients import make_target
from peers import problems
from peers.ours import each_seed, smallest_ess

from bayeslearn import tree

PACKAGES = ("blackjax", "jax", "jaxlib", "numpy")


def network_log_joint(x, y):
    """The 13-50-1 tanh network with learned noise, as one would write it down in JAX."""
    x, y = jnp.asarray(x), jnp.asarray(y)
    center = jnp.log(jnp.std(y))

    def log_joint(w):
        outputs = jnp.tanh(x @ w["first"] + w["bias"]) @ w["second"] + w["offset"]
        noise = jnp.exp(w["log_noise"])
        z = (y - outputs[:, 0]) / noise
        weights = [w[name] for name in ("first", "bias", "second", "offset")]
        log_prior = sum(-0.5 * jnp.sum((v / problems.WEIGHT_SCALE) ** 2) for v in weights)
        log_prior += -0.5 * (w["log_noise"] - center) ** 2
        return jnp.sum(-0.5 * z**2) - len(y) * w["log_noise"] + log_prior

    rng = np.random.default_rng(problems.SEED)
    start = {
        "first": rng.normal(size=(problems.INPUTS, problems.HIDDEN)) / problems.INPUTS**0.5,
        "bias": np.zeros(problems.HIDDEN),
        "second": rng.normal(size=(problems.HIDDEN, 1)) / problems.HIDDEN**0.5,
        "offset": np.zeros(1),
        "log_noise": np.asarray(float(center)),
    }
    return log_joint, jax.tree.map(jnp.asarray, start)


def hmc(turns, draws: int, chains: int = 1, target: str = "own", parallel: str = "vmap") -> None:
    """`target`: a log-joint written in JAX, or "ours" at float64 positions in one vector."""
    if target == "ours":
        with jax.enable_x64(True):
            ours, params = make_target()
            unravel = tree.unraveler(tree.double(params))
            start = tree.ravel(tree.double(params))
            _hmc(turns, draws, chains, parallel, lambda v: ours.log_joint(unravel(v)), start)
    else:
        _hmc(turns, draws, chains, parallel, *network_log_joint(*problems.regression_rows()))


def _hmc(turns, draws: int, chains: int, parallel: str, log_joint, start) -> None:
    num_weights = sum(leaf.size for leaf in jax.tree.leaves(start))
    dtype = jax.tree.leaves(start)[0].dtype
    kernel = blackjax.hmc(
        log_joint, problems.STEP_SIZE, jnp.ones(num_weights, dtype), problems.LEAPFROG
    )

    def run(state, key):
        def one(state, key):
            state, info = kernel.step(key, state)
            return state, (state.position, info.acceptance_rate)

        return jax.lax.scan(one, state, jax.random.split(key, draws))

    state, key = kernel.init(start), jax.random.key(problems.SEED)
    if chains > 1:
        state = jax.tree.map(lambda leaf: jnp.stack([leaf] * chains), state)
        run = jax.pmap(run) if parallel == "pmap" else jax.jit(jax.vmap(run))
    else:
        run = jax.jit(run)
    count = 0
    while True:
        now = jax.random.fold_in(key, count)
        keys = jax.random.split(now, chains) if chains > 1 else now
        state, (positions, acceptance) = jax.block_until_ready(run(state, keys))
        jax.tree.map(np.asarray, positions)
        count += 1
        rate = float(jnp.mean(acceptance))
        if not turns.wait(chains * draws * problems.LEAPFROG, acceptance=rate):
            return


def nuts(turns, data: str, warmup: int, samples: int, chains: int) -> None:
    x, y = map(jnp.asarray, problems.labour_rows(data))

    def log_joint(w):
        logits = x @ w
        fit = jnp.sum(y * logits - jnp.logaddexp(0.0, logits))
        return fit - 0.5 * jnp.sum(w**2) / problems.LABOUR_SCALE**2

    adaptation = blackjax.window_adaptation(blackjax.nuts, log_joint)

    @jax.jit
    @jax.vmap
    def adapt(key, start):
        (state, parameters), _ = adaptation.run(key, start, num_steps=warmup)
        return state, parameters

    @jax.jit
    @jax.vmap
    def sample(key, state, parameters):
        kernel = blackjax.nuts(log_joint, **parameters)

        def one(state, key):
            state, info = kernel.step(key, state)
            return state, (state.position, info.num_integration_steps)

        return jax.lax.scan(one, state, jax.random.split(key, samples))[1]

    def run(seed: int) -> dict:
        key_start, key_warmup, key_draws = jax.random.split(jax.random.key(seed), 3)
        start = 0.1 * jax.random.normal(key_start, (chains, x.shape[1]))
        found = adapt(jax.random.split(key_warmup, chains), start)
        jax.block_until_ready(found)
        turns.mark("warmup_seconds")
        draws, gradients = sample(jax.random.split(key_draws, chains), *found)
        draws = np.asarray(draws)
        turns.end()
        return {"ess": smallest_ess(draws), "gradients": float(gradients.sum())}

    each_seed(turns, run)
