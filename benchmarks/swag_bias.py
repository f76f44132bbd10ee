"""Standard deviations of SWAG beside exact ones: a linear regression, by step and batch size.

    python benchmarks/swag_bias.py [--steps 10000]

400 rows with four uncorrelated columns and noise 0.5, a prior N(0, 1): the posterior is a Gaussian
that is known. Each cell is the smallest and largest ratio over the four weights; 400 iterates are
kept, which leaves about 0.05 of chance in a ratio.
"""

from __future__ import annotations

import argparse

import jax.numpy as jnp
import numpy as np

import bayeslearn as bl

ROWS, NOISE = 400, 0.5
RATES, BATCHES = (0.03, 0.01, 0.003), (400, 100, 20, 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--optimizer", default="adam")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    x = np.linalg.qr(rng.normal(size=(ROWS, 4)))[0] * np.sqrt(ROWS)
    y = x @ [0.5, -0.3, 0.2, 0.0] + NOISE * rng.normal(size=ROWS)
    exact = 1.0 / np.sqrt(1.0 + ROWS / NOISE**2)
    network = ({"w": jnp.zeros(4)}, lambda p, row: p["w"] @ row)
    likelihood = bl.likelihoods.Gaussian(noise_scale=NOISE)
    model = bl.Model(network, likelihood, bl.priors.Normal(scale=1.0))
    print(arguments.optimizer, "| rows in a batch | " + " | ".join(map(str, RATES)) + " |")
    for batch_size in BATCHES:
        cells = []
        for rate in RATES:
            algorithm = bl.SWAG(learning_rate=rate, num_iterates=400, optimizer=arguments.optimizer)
            posterior = bl.fit(
                model,
                algorithm,
                (x, y),
                seed=0,
                num_steps=arguments.steps,
                batch_size=batch_size,
                progress=False,
            )
            ratios = np.asarray(posterior.family.std["network"]["w"]) / exact
            cells.append(f"{ratios.min():.2f} to {ratios.max():.2f}")
        print(f"| {batch_size} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
