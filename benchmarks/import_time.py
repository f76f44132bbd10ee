"""Seconds to `import bayeslearn`, as a multiple of those to `import jax`.

    python benchmarks/import_time.py [--repeats 9]

Each import runs in a fresh process, timed inside it, the statements taking turns; medians. A first
round, which fills the disk cache, is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from importlib.metadata import version

STATEMENTS = {
    "jax": "import jax",
    "bayeslearn": "import bayeslearn",
    "bayeslearn.fit": "import bayeslearn; bayeslearn.fit",
}


def seconds(statement: str) -> float:
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return float(done.stdout)


def measure(repeats: int) -> dict:
    times: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for round_number in range(repeats + 1):
        for name, statement in STATEMENTS.items():
            taken = seconds(statement)
            if round_number:
                times[name].append(taken)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "benchmark": "import_time",
        "ratio": round(medians["bayeslearn"] / medians["jax"], 4),
        "ratio_with_fit": round(medians["bayeslearn.fit"] / medians["jax"], 4),
        "seconds": {name: round(value, 4) for name, value in medians.items()},
        "repeats": repeats,
    }


def environment() -> dict:
    return {
        **{name: version(name) for name in ("bayeslearn", "jax", "numpy")},
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9, help="fresh processes each (default 9)")
    repeats = parser.parse_args().repeats
    if repeats < 1:
        parser.error("--repeats must be at least 1")
    before = environment()
    result = measure(repeats)
    times = result["seconds"]
    print(
        f"import bayeslearn {times['bayeslearn']:.3f} s, import jax {times['jax']:.3f} s:"
        f" ratio {result['ratio']:.3f} (goal: at most 1.3);"
        f" with bayeslearn.fit {times['bayeslearn.fit']:.3f} s: {result['ratio_with_fit']:.3f}"
    )
    print(json.dumps(result | before))


if __name__ == "__main__":
    main()
