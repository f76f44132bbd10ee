"""Programs and seconds of each method's first fit, each in a process of its own.

The model is the default one for tables (one hidden layer of 50 units, 400 rows of 8 columns); a fit
has 40 steps, so that nearly all of its time is compiling. Another fit in the same process shows
what is left. Programs are those that XLA compiled; "eager" ones are single operations outside of
compiled functions.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time

METHODS = ("map", "bayes-by-backprop", "vogn", "vadam", "ivon", "emgvb", "laplace", "hmc", "swag")
SHORT = {"hmc": {"num_warmup": 20, "num_samples": 20}, "swag": {"num_iterates": 5, "rank": 3}}
MARK = "Compiling "
OWN = ("_steps", "init_state", "evaluate", "log_joint", "draw", "refresh", "scale_out_of_range")


class Counter(logging.Handler):
    """Names of what was compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the name after the mark."""
        text = record.getMessage()
        if text.startswith(MARK):
            self.names.append(text.removeprefix(MARK).split()[0])


def measure(name: str) -> dict[str, object]:
    """Programs and seconds of a first and a second fit."""
    import jax
    import numpy as np

    import bayeslearn as bl

    counter = Counter()
    jax.config.update("jax_log_compiles", True)
    for logger in ("jax._src.interpreters.pxla", "jax._src.dispatch"):
        logging.getLogger(logger).addHandler(counter)
        logging.getLogger(logger).propagate = False
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 8))
    model = bl.Model(bl.networks.MLP([50]), bl.likelihoods.Gaussian())
    algorithm = bl.ALGORITHMS[name](**SHORT.get(name, {}))
    is_sampler = algorithm.capabilities.is_sampler
    options = {"num_chains": 1} if is_sampler else {"num_steps": 40}
    seconds = []
    for _ in range(2):
        began, cpu = time.perf_counter(), time.process_time()
        bl.fit(model, algorithm, (x, x[:, 0]), seed=0, **options)
        seconds.append((time.perf_counter() - began, time.process_time() - cpu))
    own = [n for n in counter.names if any(mark in n for mark in OWN)]
    return {
        "method": name,
        "programs": len(counter.names),
        "eager": len(counter.names) - len(own),
        "first_s": round(seconds[0][0], 1),
        "first_core_s": round(seconds[0][1], 1),
        "second_s": round(seconds[1][0], 2),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", default=METHODS)
    parser.add_argument("--here", action="store_true", help="in this process")
    given = parser.parse_args()
    for method in given.methods:
        if given.here:
            print(json.dumps(measure(method)), flush=True)
        else:
            subprocess.run([sys.executable, __file__, "--here", method], check=True)
