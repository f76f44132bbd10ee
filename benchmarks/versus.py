"""Ours, a peer and the floor, taking turns in one run.

    python benchmarks/versus.py run [--cases mlp-step hmc ...] [--peers numpyro ...] [--repeats 15]
    python benchmarks/versus.py table

A cell is a case and a peer: a JSON file in benchmarks/results/versus, with every turn's seconds,
versions, device, load and seed; one that is there is not run again. Each contender is a process of
its own (`benchmarks/peers/turns.py`), in its own environment where peers conflict, and does
one turn at a time, in an order that shifts with every round. What is compared is the median over
rounds of the ratios within a round. Compiling and the first turn are apart, without JAX's cache on
disk. `make peers` makes the environments; a peer that is not installed is passed over. `--short`
(`make bench`) does three rounds, and writes to benchmarks/results/versus_short.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from versus_tables import rows_of

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "versus"
SHORT = RESULTS.parent / "versus_short"
ENVIRONMENTS = ROOT / ".peers"
SEED = 0
HMC_DRAWS, CHAINS, WARMUP, SAMPLES = 200, 4, 500, 1000
# An error in one line; compiling that is not hidden by a cache.
QUIET = {"JAX_TRACEBACK_FILTERING": "off", "JAX_ENABLE_COMPILATION_CACHE": "false"}
DEVICES = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={CHAINS}"}
EMGVB_STEPS = 150
PREDICT_ROWS = 1024
# The two fastest of `numpyro.tune_full` that are within 0.02 nats with every seed.
FULL_RANK = {"steps": 1000, "draws": 10, "rate": 0.03}
FULL_RANK_DRAWS = {"steps": 250, "draws": 50, "rate": 0.1}


class Contender(NamedTuple):
    module: str  # a file of benchmarks/peers
    function: str
    options: Mapping = MappingProxyType({})
    environment: str = "jax"  # that of this process; else a folder of ENVIRONMENTS
    variables: Mapping = MappingProxyType({})


class Case(NamedTuple):
    unit: str
    shared: dict[str, Contender]  # in every cell of the case
    peers: dict[str, dict[str, Contender]]
    ratios: dict[str, tuple[str, str]]  # name -> contenders whose times per unit are divided
    needs_data: bool = False
    repeats: int = 15


def torch_peer(module: str, steps: int, function: str = "step") -> dict[str, Contender]:
    floor = Contender("torch_adam", "step", {"steps": steps}, "torch")
    return {"peer": Contender(module, function, {"steps": steps}, "torch"), "its adam": floor}


def cases(data: str) -> dict[str, Case]:
    steps = {"steps": 20}
    one, four = {"draws": HMC_DRAWS}, {"draws": HMC_DRAWS, "chains": CHAINS}
    chains = {"data": data, "warmup": WARMUP, "samples": SAMPLES, "chains": CHAINS}
    labour, size = {"data": data}, {"rows": PREDICT_ROWS, "draws": 1000}
    return {
        "mlp-step": Case(
            "step",
            {
                "adam": Contender("ours", "step", {"method": "adam", **steps}),
                "ours": Contender("ours", "step", {"method": "bayes-by-backprop", **steps}),
            },
            {
                name: torch_peer(module, 20)
                for name, module in {
                    "bayesian-torch": "bayesian_torch",
                    "blitz": "blitz",
                    "torchbnn": "torchbnn",
                    "posteriors": "posteriors",
                    "pyro": "pyro",
                }.items()
            }
            | {"numpyro": {"peer": Contender("numpyro", "svi_mlp", steps)}},
            {
                "peer / ours": ("peer", "ours"),
                "ours / our Adam": ("ours", "adam"),
                "peer / its Adam": ("peer", "its adam"),
                "its Adam / our Adam": ("its adam", "adam"),
            },
        ),
        "natural-step": Case(
            "step",
            {
                "adam": Contender("ours", "step", {"method": "adam", **steps}),
                "vadam": Contender("ours", "step", {"method": "vadam", **steps}),
                "vogn": Contender("ours", "step", {"method": "vogn", **steps}),
            },
            {"ivon-opt": torch_peer("ivon", 20)},
            {
                "Vadam / our Adam": ("vadam", "adam"),
                "VOGN / our Adam": ("vogn", "adam"),
                "IVON / its Adam": ("peer", "its adam"),
                "IVON / Vadam": ("peer", "vadam"),
                "IVON / VOGN": ("peer", "vogn"),
            },
        ),
        "hmc": Case(
            "gradient",
            {
                "bare": Contender("ours", "gradients", {"count": HMC_DRAWS * 32}),
                "ours": Contender("ours", "hmc", one),
            },
            {
                "blackjax": {
                    "peer": Contender("blackjax", "hmc", one),
                    "peer, our log-joint": Contender("blackjax", "hmc", one | {"target": "ours"}),
                },
                "numpyro": {"peer": Contender("numpyro", "hmc", one)},
            },
            {
                "bare / ours": ("bare", "ours"),
                "peer / ours": ("peer", "ours"),
                "peer with our log-joint / ours": ("peer, our log-joint", "ours"),
            },
        ),
        "hmc-chains": Case(
            "gradient",
            {"one": Contender("ours", "hmc", one), "ours": Contender("ours", "hmc", four)},
            {
                "blackjax": {
                    "peer": Contender("blackjax", "hmc", four | {"parallel": "vmap"}),
                    "peer, a device a chain": Contender(
                        "blackjax", "hmc", four | {"parallel": "pmap"}, variables=DEVICES
                    ),
                },
                "numpyro": {
                    "peer": Contender("numpyro", "hmc", four | {"parallel": "vmap"}),
                    "peer, a device a chain": Contender(
                        "numpyro", "hmc", four | {"parallel": "pmap"}, variables=DEVICES
                    ),
                },
            },
            {
                "one chain / ours": ("one", "ours"),
                "peer / ours": ("peer", "ours"),
                "peer by devices / ours": ("peer, a device a chain", "ours"),
            },
        ),
        "nuts": Case(
            "effective sample",
            {"ours": Contender("ours", "nuts", chains)},
            {
                "blackjax": {"peer": Contender("blackjax", "nuts", chains)},
                "numpyro": {
                    "peer": Contender("numpyro", "nuts", chains | {"parallel": "vmap"}),
                    "peer, a device a chain": Contender(
                        "numpyro", "nuts", chains | {"parallel": "pmap"}, variables=DEVICES
                    ),
                },
            },
            {
                "peer / ours": ("peer", "ours"),
                "peer by devices / ours": ("peer, a device a chain", "ours"),
            },
            needs_data=True,
            repeats=9,
        ),
        "full-rank": Case(
            "run",
            {
                name: Contender("ours", "emgvb", labour | {"steps": EMGVB_STEPS, "start": start})
                for name, start in (("ours", "published"), ("ours, warm start", "warm"))
            },
            {
                "numpyro": {
                    "peer": Contender("numpyro", "svi_full", labour | FULL_RANK),
                    "peer, 50 draws": Contender("numpyro", "svi_full", labour | FULL_RANK_DRAWS),
                }
            },
            {
                "peer / ours": ("peer", "ours"),
                "peer with 50 draws / ours": ("peer, 50 draws", "ours"),
                "peer / ours with warm start": ("peer", "ours, warm start"),
            },
            needs_data=True,
            repeats=9,
        ),
        "laplace": Case(
            "fit",
            {},
            {
                f"laplace-torch, {covariance}, {weights}": {
                    "ours": Contender("ours", "laplace", kind),
                    "peer": Contender("laplace_torch", "fit", kind, "torch"),
                }
                for covariance in ("full", "diagonal")
                for weights in ("all", "last_layer")
                if (kind := {"covariance": covariance, "weights": weights})
            },
            {"peer / ours": ("peer", "ours")},
        ),
        "predict": Case(
            "draw and row",
            {
                "ours": Contender("ours", "predict", size),
                "products": Contender("ours", "products", size),
            },
            {"bare products": {}},
            {"ours / products": ("ours", "products")},
            repeats=3,
        ),
        "memory": Case(
            "run",
            {},
            {
                f"{what}, {rows} rows, {draws} draws": {
                    "ours": Contender(
                        "ours", "memory", {"what": what, "rows": rows, "draws": draws}
                    )
                }
                for what in ("mean", "covariance", "log_prob", "interval")
                for rows, draws in ((1000, 100), (2000, 100), (1000, 200))
            },
            {},
            repeats=2,
        ),
    }


class Process:
    """A contender at the other end of its pipes."""

    def __init__(self, contender: Contender, environments: Path):
        python = Path(sys.executable)
        if contender.environment != "jax":
            python = environments / contender.environment / "bin" / "python"
        variables = os.environ | {**contender.variables} | QUIET
        command = [python, ROOT / "benchmarks" / "peers" / "turns.py", contender.module]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, read when it fails
        self._process = subprocess.Popen(
            [*map(str, command), contender.function, json.dumps(dict(contender.options))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=variables,
        )
        self.versions = self._answer()
        self.setup = self._answer()

    def _answer(self) -> dict:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            lines = self._errors.read().strip().splitlines()
            raise RuntimeError(lines[-1] if lines else f"exit code {self._process.returncode}")
        return json.loads(line)

    def turn(self) -> dict:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()


def measure(contenders: dict[str, Contender], environments: Path, repeats: int) -> dict:
    processes: dict[str, Process] = {}
    try:
        for label, contender in contenders.items():
            try:
                processes[label] = Process(contender, environments)
            except RuntimeError as error:
                return {"failed": f"{label}: {error}"}
        turns: dict[str, list[dict]] = {label: [] for label in processes}
        for round_number in range(repeats):
            shift = round_number % len(processes)
            for label in [*processes][shift:] + [*processes][:shift]:
                try:
                    turns[label].append(processes[label].turn())
                except RuntimeError as error:
                    return {"failed": f"{label}: {error}"}
    finally:
        for process in processes.values():
            process.close()
    return {
        "repeats": repeats,
        "contenders": {
            label: {
                "options": dict(contenders[label].options),
                "versions": process.versions,
                "setup": process.setup,
                "turns": turns[label],
            }
            for label, process in processes.items()
        },
    }


def is_installed(contender: Contender, environments: Path) -> bool:
    if contender.environment == "jax":
        return find_spec(contender.module) is not None or contender.module == "ours"
    return (environments / contender.environment / "bin" / "python").exists()


def run(arguments: argparse.Namespace) -> None:
    from faithfulness import write_cell
    from hmc_gradients import environment

    data = "" if arguments.data is None else str(arguments.data.resolve())
    results = SHORT if arguments.short else arguments.results
    for case_name, case in cases(data).items():
        if arguments.cases and case_name not in arguments.cases:
            continue
        if case.needs_data and not data:
            print(f"{case_name} needs --data DIR", file=sys.stderr)
            continue
        peers = {
            peer: own
            for peer, own in case.peers.items()
            if all(is_installed(one, arguments.environments) for one in own.values())
        }
        for peer in case.peers.keys() - peers.keys():
            print(f"{case_name}: {peer} is not installed (make peers)", file=sys.stderr)
        for peer, own in (peers or {"none": {}}).items():
            path = results / f"{case_name}__{peer}.json"
            is_wanted = not arguments.peers or peer in arguments.peers
            if not is_wanted or not case.shared | own or (path.exists() and not arguments.short):
                continue
            details = environment() | {"case": case_name, "peer": peer, "seed": SEED}
            repeats = arguments.repeats or (3 if arguments.short else case.repeats)
            write_cell(path, measure(case.shared | own, arguments.environments, repeats) | details)
            print(f"{case_name}: {peer}", flush=True)


def table(results: Path) -> str:
    lines = [
        "| case | peer | ratio of times | median (quartiles) | ms per unit | first turn, s |",
        "|---|---|---|---|---|---|",
    ]
    known = cases("")
    for path in sorted(results.glob("*.json")):
        cell = json.loads(path.read_text())
        if "failed" in cell:
            lines.append(f"| {cell['case']} | {cell['peer']} | failed: {cell['failed']} | | | |")
        else:
            case = known[cell["case"]]
            lines += rows_of(cell, case.unit, case.ratios)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--data", type=Path, help="folder with labour_mroz.csv.gz and splits/")
    parser.add_argument("--cases", nargs="*", help="some of the cases (default: all)")
    parser.add_argument("--peers", nargs="*", help="some of the peers (default: all)")
    parser.add_argument("--repeats", type=int, help="rounds (default: the case's own)")
    parser.add_argument("--short", action="store_true", help="3 rounds, and always anew")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.repeats is not None and arguments.repeats < 2:
        parser.error("--repeats must be at least 2")
    if arguments.what == "run":
        run(arguments)
    print(table(SHORT if arguments.short else arguments.results))


if __name__ == "__main__":
    main()
