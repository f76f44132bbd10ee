"""Reference moments of the models in `tests/gold.py`, from densities written apart, in NumPy.

    python benchmarks/gold_reference.py            # minutes; writes tests/data/gold.json
    python benchmarks/gold_reference.py --models garch mixture

Closed form: linear models, two modes. Quadrature over the scales, the rest in closed form: AR(5),
eight schools, 50 groups. Importance sampling with Student's t: logistic, GARCH, mixture. Long runs
of BlackJAX's NUTS, with its own window adaptation: the Poisson GP and the network. `--check`
compares a shorter BlackJAX run of any model with its reference.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from scipy import optimize, stats
from scipy.special import expit, logsumexp

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

import gold  # noqa: E402

DRAWS, BLOCK = 1_000_000, 20_000
FREEDOM = 5.0  # of the proposal
CHAINS = 8


def exact(mean, std) -> dict:
    zero = np.zeros(np.size(mean))
    return moments(mean, std, zero, zero, "exact")


def moments(mean, std, mean_error, std_error, source: str) -> dict:
    numbers = {"mean": mean, "std": std, "mean_error": mean_error, "std_error": std_error}
    rounded = {k: [float(f"{x:.7g}") for x in np.ravel(v)] for k, v in numbers.items()}
    return rounded | {"source": source}


def linear(is_collinear: bool) -> dict:
    x, y = gold.linear_data(is_collinear)
    cov = np.linalg.inv(np.eye(x.shape[1]) + x.T @ x / 0.5**2)
    return exact(cov @ x.T @ y / 0.5**2, np.sqrt(np.diag(cov)))


def averaged(log_weight, mean, square) -> dict:
    """Moments of a mixture over nodes (along axis 0), of conditional means and squares."""
    weight = np.exp(log_weight - logsumexp(log_weight))
    mean, square = weight @ mean, weight @ square
    return exact(mean, np.sqrt(square - mean**2))


def schools(is_centred: bool) -> dict:
    """Given log tau, mu and theta are Gaussian."""
    y, s2 = gold.SCHOOLS, gold.SCHOOLS_STD**2
    u = np.linspace(-25.0, 9.0, 400_001)
    tau = np.exp(u)[:, None]
    prec = 1.0 / (s2 + tau**2)
    v = 1.0 / (1 / 25.0 + prec.sum(axis=1))
    m = v * (prec @ y)
    log_evidence = 0.5 * (np.log(prec).sum(axis=1) - prec @ y**2 + np.log(v) + m**2 / v)
    log_weight = log_evidence + stats.halfcauchy.logpdf(tau[:, 0], scale=5.0) + u
    m, v = m[:, None], v[:, None]
    w, left = tau**2 * prec, s2 * tau**2 * prec  # theta given mu: w y + (1 - w) mu, variance left
    if is_centred:
        theta, var = w * y + (1 - w) * m, left + (1 - w) ** 2 * v
    else:
        theta, var = w * (y - m) / tau, s2 * prec + (w / tau) ** 2 * v
    mean = np.concatenate([m, tau, theta], axis=1)
    square = np.concatenate([m**2 + v, tau**2, theta**2 + var], axis=1)
    return averaged(log_weight, mean, square)


def hierarchical() -> dict:
    """Given log tau and log sigma, mu and the groups are Gaussian."""
    y = gold.group_data()
    count, size = y.shape
    means, within = y.mean(axis=1), ((y - y.mean(axis=1, keepdims=True)) ** 2).sum()
    tau = np.exp(np.linspace(-3.0, 1.5, 801))
    sigma = np.exp(np.linspace(-0.8, 0.6, 801))
    tau, sigma = (a.reshape(-1, 1) for a in np.meshgrid(tau, sigma))
    prec = 1.0 / (tau**2 + sigma**2 / size)
    v = 1.0 / (1 / 25.0 + count * prec)
    m = v * prec * means.sum()
    log_evidence = 0.5 * (count * np.log(prec) - prec * (means**2).sum() + np.log(v) + m**2 / v)
    log_evidence -= within / (2 * sigma**2) + count * (size - 1) * np.log(sigma)
    log_prior = stats.halfnorm.logpdf(tau) + stats.halfnorm.logpdf(sigma) + np.log(tau * sigma)
    w = tau**2 * prec
    group, var = w * means + (1 - w) * m, w * sigma**2 / size + (1 - w) ** 2 * v
    mean = np.concatenate([group, m, sigma, tau], axis=1)
    square = np.concatenate([group**2 + var, m**2 + v, sigma**2, tau**2], axis=1)
    return averaged((log_evidence + log_prior)[:, 0], mean, square)


def ar5() -> dict:
    """Given log sigma the coefficients are Gaussian."""
    y = gold.ar_data()
    x = np.column_stack([np.ones(195), *(y[5 - lag : 200 - lag] for lag in range(1, 6))])
    y = y[5:]
    log_weight, mean, square = [], [], []
    for u in np.linspace(-0.7, 0.3, 4001):
        sigma = np.exp(u)
        cov = np.linalg.inv(x.T @ x / sigma**2 + np.eye(6) / 100.0)
        w = cov @ x.T @ y / sigma**2
        log_evidence = 0.5 * np.linalg.slogdet(cov)[1] - len(y) * u
        log_evidence -= 0.5 * (y @ y / sigma**2 - w @ np.linalg.solve(cov, w))
        log_weight.append(log_evidence + stats.halfcauchy.logpdf(sigma, scale=2.5) + u)
        mean.append([*w, sigma])
        square.append([*(w**2 + np.diag(cov)), sigma**2])
    return averaged(np.array(log_weight), np.array(mean), np.array(square))


def weighted(log_density, start, constrain) -> dict:
    """Importance sampling of real numbers z, with a Student's t at the mode; x = constrain(z)."""
    found = optimize.minimize(lambda z: -log_density(z[None])[0], start, method="BFGS")
    size = len(start)
    root = np.linalg.cholesky(1.3 * found.hess_inv)
    rng = np.random.default_rng(0)
    proposal = stats.multivariate_t(found.x, root @ root.T, FREEDOM)
    logs, values = [], []
    for _ in range(DRAWS // BLOCK):
        scale = np.sqrt(FREEDOM / rng.chisquare(FREEDOM, size=(BLOCK, 1)))
        z = found.x + rng.normal(size=(BLOCK, size)) * scale @ root.T
        logs.append(log_density(z) - proposal.logpdf(z))
        values.append(constrain(z))
    logs, values = np.concatenate(logs), np.concatenate(values)
    weight = np.exp(logs - logsumexp(logs))
    mean = weight @ values
    away = (values - mean) ** 2
    std = np.sqrt(weight @ away)
    error = np.sqrt(weight**2 @ away)
    std_error = np.sqrt(weight**2 @ (away - std**2) ** 2) / (2 * std)
    return moments(mean, std, error, std_error, f"importance, ESS {1 / (weight @ weight):.0f}")


def logistic() -> dict:
    x, y = gold.logistic_data()

    def log_density(w):
        p = w @ x.T
        return p @ y - np.logaddexp(0, p).sum(axis=1) - (w**2).sum(axis=1) / (2 * 2.5**2)

    return weighted(log_density, np.zeros(5), lambda w: w)


def garch() -> dict:
    y = gold.garch_data()

    def constrain(z):
        return np.column_stack([np.exp(z[:, 0]), expit(z[:, 1]), z[:, 2], expit(z[:, 3])])

    def log_density(z):
        a0, a1, mu, share = constrain(z).T
        variance, total = np.ones(len(z)), np.zeros(len(z))
        for now in y:
            total -= 0.5 * (np.log(variance) + (now - mu) ** 2 / variance)
            variance = a0 + a1 * (now - mu) ** 2 + (1 - a1) * share * variance
        total += stats.halfcauchy.logpdf(a0, scale=2.5) - mu**2 / 200.0 + np.log1p(-a1)
        return total + z[:, 0] + sum(np.log(p) + np.log1p(-p) for p in (a1, share))

    return weighted(log_density, np.array([-1.0, -1.0, 0.5, 0.0]), constrain)


def mixture() -> dict:
    y = gold.mixture_data()

    def constrain(z):
        mu = np.column_stack([z[:, 0], z[:, 0] + np.exp(z[:, 1])])
        return np.column_stack([mu, np.exp(z[:, 2:4]), expit(z[:, 4])])

    def log_density(z):
        m1, m2, s1, s2, theta = (a[:, None] for a in constrain(z).T)
        first = np.log(theta / s1) - 0.5 * ((y - m1) / s1) ** 2
        second = np.log((1 - theta) / s2) - 0.5 * ((y - m2) / s2) ** 2
        log_prior = stats.beta.logpdf(theta, 5, 5) + np.log(theta * (1 - theta))
        log_prior -= (m1**2 + m2**2 + s1**2 + s2**2) / 8.0
        total = np.logaddexp(first, second).sum(axis=1) + log_prior[:, 0]
        return total + z[:, 1] + z[:, 2] + z[:, 3]

    return weighted(log_density, np.array([-1.5, 1.1, 0.0, 0.0, 0.0]), constrain)


def blackjax_draws(name: str, kept: int, chains: int = CHAINS, warmup: int = 600) -> np.ndarray:
    """(chains, draws, quantities) of BlackJAX's NUTS, adapted by its own windows."""
    import blackjax
    import jax
    from jax.flatten_util import ravel_pytree

    model = gold.MODELS[name]()
    with jax.enable_x64(True):
        if model.model is not None:
            log_joint, start, read = _network_density(model)
        else:
            target = model.target()
            start, unravel = ravel_pytree(target.start)
            log_joint = lambda z: target.log_joint(unravel(z))  # noqa: E731
            read = lambda z: ravel_pytree(target.constrained(unravel(z)))[0]  # noqa: E731

        def chain(key):
            begin, adapt, go = jax.random.split(key, 3)
            first = start + jax.random.normal(begin, start.shape)
            warm = blackjax.window_adaptation(
                blackjax.nuts, log_joint, is_mass_matrix_diagonal=False, target_acceptance_rate=0.95
            )
            (state, parameters), _ = warm.run(adapt, first, warmup)
            kernel = blackjax.nuts(log_joint, **parameters)

            def one(state, key):
                state, _ = kernel.step(key, state)
                return state, read(state.position)

            return jax.lax.scan(one, state, jax.random.split(go, kept))[1]

        keys = jax.random.split(jax.random.key(0), chains)
        return np.asarray(jax.jit(jax.vmap(chain))(keys), np.float64)


def _network_density(model):
    """The 1-10-1 network, written out: tanh, noise 0.2, weights N(0, 1)."""
    import jax.numpy as jnp

    x, y = (jnp.asarray(part, jnp.float64) for part in model.data)

    def outputs(z, at):
        return jnp.tanh(at * z[:10] + z[10:20]) @ z[20:30] + z[30]

    def log_joint(z):
        return -0.5 * jnp.sum((y - outputs(z, x)) ** 2) / 0.2**2 - 0.5 * jnp.sum(z**2)

    return log_joint, jnp.zeros(31), lambda z: outputs(z, jnp.asarray(gold.NETWORK_AT))


def sampled(name: str, kept: int) -> dict:
    """Moments and their errors from the spread of the chains' own."""
    draws = blackjax_draws(name, kept)
    by_chain = draws.mean(axis=1), draws.std(axis=1)
    errors = [part.std(axis=0, ddof=1) / np.sqrt(len(draws)) for part in by_chain]
    flat = draws.reshape(-1, draws.shape[-1])
    return moments(
        flat.mean(axis=0), flat.std(axis=0), *errors, f"BlackJAX NUTS, {CHAINS} x {kept} draws"
    )


REFERENCES = {
    "linear": lambda: linear(False),
    "collinear": lambda: linear(True),
    "logistic": logistic,
    "poisson_gp": lambda: sampled("poisson_gp", 10_000),
    "ar5": ar5,
    "garch": garch,
    "mixture": mixture,
    "schools_centred": lambda: schools(True),
    "schools": lambda: schools(False),
    "hierarchical": hierarchical,
    "network": lambda: sampled("network", 1000),
    "two_modes": lambda: exact([3.0, 0.0], [np.sqrt(1.0 + 0.21 * 100.0), 1.0]),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(REFERENCES), default=list(REFERENCES))
    parser.add_argument("--check", action="store_true", help="a BlackJAX run beside each reference")
    args = parser.parse_args()
    stored = json.loads(gold.MOMENTS.read_text()) if gold.MOMENTS.exists() else {"models": {}}
    for name in args.models:
        if args.check:
            found = gold.errors(blackjax_draws(name, 2000, 4), stored["models"][name])
            print(f"{name}: BlackJAX {found}", flush=True)
            continue
        found = REFERENCES[name]() | {"at_start": gold.MODELS[name]().at_start()}
        stored["models"][name] = found
        print(name, stored["models"][name]["source"], flush=True)
        text = json.dumps(stored, separators=(",", ":")).replace('},"', '},\n"')
        gold.MOMENTS.write_text(text + "\n")


if __name__ == "__main__":
    main()
