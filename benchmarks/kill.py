"""`kill -9` at random moments: does a run that is resumed end with the bits of one that never was?

    python benchmarks/kill.py --kills 200 --out benchmarks/results/kill.json
    python benchmarks/kill.py --kills 4 --algorithms vogn hmc command-line

Each run is a process of its own that fits with checkpoints. It is killed at a random moment after
its start, at a random moment after its first new checkpoint, or as soon as a half-written folder is
seen (in turn), resumed by another process, killed again, and so on; the last process is left to
end. Posterior, state, draws and trace are then compared by SHA-256 with those of a run that was
never cut. What a kill has hit is read off the folder it leaves: a half-written folder means inside
a write. Beside the algorithms there are `multi-start`, `ensemble-hmc` (chains in each member),
`calibrated` (an estimator that is calibrated after its fit) and `command-line` (`bayeslearn fit`,
whose table of predictions is compared). Results are added to --out after every run, and a second
call goes on from there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

HALF_WRITTEN = re.compile(r"\.(fit|(part|checkpoint)-\d+)\.[0-9a-f]{16}")
MOMENTS = ("write", "checkpoint", "write", "any")
KILLS_PER_RUN = 6
LONGEST = 1800.0  # seconds for one process
EVERY = 50
CASES = ("multi-start", "ensemble-hmc", "calibrated", "command-line")  # beside the algorithms


def problem(name: str):
    """A small problem that takes the algorithm seconds, with a checkpoint every few steps."""
    import bayeslearn as bl

    x, y = rows()
    options: dict = {"seed": 0}
    if name == "ensemble-hmc":
        sampler = bl.HMC(num_warmup=100, num_samples=100)
        algorithm: bl.Algorithm = bl.Ensemble(num_members=3, member=sampler)
        return _model([4]), algorithm, (x, y), options
    if name == "multi-start":
        starts = bl.MultiStart(
            2, ((100, 1),), perturbations=(1,), perturbation_steps=100, settle_steps=200
        )
        return _model([4]), bl.BayesByBackprop(), (x, y), options | {"starts": starts}
    algorithm = bl.ALGORITHMS[name]()
    if algorithm.capabilities.is_sampler:
        counts = {"num_warmup": 150, "num_samples": 250}
        algorithm = bl.ALGORITHMS[name](
            **counts, **({"thin": 2} if "thin" in vars(algorithm) else {})
        )
        options["num_chains"] = 2
    elif algorithm.capabilities.is_composite:
        few = {"num_members": 3}
        if name == "mile":
            few["sampler"] = bl.MCLMC(num_warmup=300, num_samples=100, thin=2)
        algorithm = bl.ALGORITHMS[name](**few)
        options |= {"num_steps": 400}
    else:
        options |= {"num_steps": 400}
        if algorithm.capabilities.takes_minibatches:
            options["batch_size"] = 16
    layers = [] if algorithm.capabilities.needs_linear_model else [4]
    return _model(layers), algorithm, (x, y), options


def rows():
    """Sixty rows of two columns."""
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.uniform(-2.0, 2.0, size=(60, 2))
    return x, np.sin(2 * x[:, 0]) + 0.3 * x[:, 1] + 0.2 * rng.normal(size=60)


def _model(hidden: list[int]):
    import bayeslearn as bl

    return bl.Model(bl.networks.MLP(hidden), bl.likelihoods.Gaussian(noise_scale=0.2))


def digest(posterior) -> dict[str, str]:
    """SHA-256 of all that must be the same."""
    import jax
    import numpy as np

    def of(values) -> str:
        hashed = hashlib.sha256()
        for leaf in jax.tree.leaves(values):
            array = np.ascontiguousarray(leaf)
            hashed.update(f"{array.shape} {array.dtype}".encode() + array.tobytes())
        return hashed.hexdigest()

    return {
        "posterior": of(posterior.family),
        "state": of(posterior.state),
        "trace": of({name: posterior.trace[name] for name in sorted(posterior.trace)}),
        "outcome": repr((posterior.elbo, posterior.stopped, posterior.notes)),
    }


def child(name: str, folder: str, how: str) -> None:
    """One process: the whole run, or the rest of one."""
    import bayeslearn as bl

    warnings.simplefilter("ignore", bl.MixingWarning)
    if name in ("calibrated", "command-line"):
        find = calibrated if name == "calibrated" else command_line
        print("ready", flush=True)
        print(json.dumps(find(folder)), flush=True)
        return
    model, algorithm, data, options = problem(name)
    print("ready", flush=True)
    if how == "whole":
        found = bl.fit(model, algorithm, data, **options)
    elif how == "begin":
        found = bl.fit(
            model, algorithm, data, checkpoint=bl.Checkpoint(folder, every=EVERY), **options
        )
    else:
        found = bl.resume(folder, data)
    print(json.dumps(digest(found)), flush=True)


def calibrated(folder: str) -> dict[str, str]:
    """An estimator that resumes its run, or begins it, and is then calibrated."""
    import bayeslearn as bl

    x, y = rows()
    estimator = bl.BayesianNNRegressor(
        [4], method=bl.VOGN(), num_steps=400, calibration="conformal", random_state=0
    )
    estimator.fit(x, y, checkpoint=bl.Checkpoint(folder, every=EVERY, resume=True))
    lower, upper = estimator.predictive(x).interval(0.9)
    parts = {"lower": lower.tobytes(), "upper": upper.tobytes()}
    own = {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}
    return own | digest(estimator.posterior_)


def command_line(folder: str) -> dict[str, str]:
    """`bayeslearn fit`, resumed or begun: its predictions and its scores."""
    import numpy as np

    from bayeslearn.cli.app import main as command

    out = Path(folder.removesuffix(".checkpoint"))
    table = out.with_suffix(".csv")
    if not table.exists():
        partial = table.with_suffix(f".{os.getpid()}")
        np.savetxt(partial, np.column_stack(rows()), delimiter=",", header="a,b,y", comments="")
        os.replace(partial, table)
    words = f"fit {table} --target y --method vogn --num-steps 400 --hidden 4 --calibrate scale"
    words += f" --out {out} --predict {table} --overwrite --quiet --no-cache"
    words += f" --checkpoint --resume --every {EVERY}"
    try:
        command(words.split(), prog_name="bayeslearn")
    except SystemExit as ended:
        if ended.code:
            raise
    found = hashlib.sha256((out / "predictions.csv").read_bytes()).hexdigest()
    return {"predictions": found}


def start(name: str, folder: Path, how: str) -> subprocess.Popen:
    command = [sys.executable, __file__, "--child", name, str(folder), how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen) -> dict[str, str]:
    """What a process that was left alone has found."""
    out, errors = process.communicate(timeout=LONGEST)
    if process.returncode:
        raise RuntimeError(f"A process ended with {process.returncode}:\n{errors}")
    return json.loads(out.splitlines()[-1])


def names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def checkpoints_in(folder: Path) -> set[str]:
    return {name for name in names_in(folder) if name.startswith("checkpoint-")}


def kill(
    process: subprocess.Popen, folder: Path, moment: str, rng: random.Random, longest: float
) -> dict | None:
    """Kill at such a moment of a run of `longest` seconds; None if the process ended before."""
    before, began = checkpoints_in(folder), time.monotonic()
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"A process did not start:\n{process.communicate()[1]}")
    ready = time.monotonic()
    if moment == "any":
        wait = rng.uniform(0.0, longest)
        while time.monotonic() - ready < wait and process.poll() is None:
            time.sleep(0.001)
    else:
        is_first = moment == "write" and rng.random() < 0.5  # of this process
        while process.poll() is None and not is_first and not checkpoints_in(folder) - before:
            time.sleep(0.0005)
        until = time.monotonic() + (0.0 if is_first else rng.uniform(0.0, 0.25 * longest))
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.0005)
        writes = rng.randrange(1, 4)  # not always the same of the folders of a checkpoint
        seen: set[str] = set()
        while moment == "write" and process.poll() is None and len(seen) < writes:
            seen |= {name for name in names_in(folder) if HALF_WRITTEN.fullmatch(name)}
    process.kill()
    _, errors = process.communicate()
    if process.returncode != -9:
        if process.returncode:
            raise RuntimeError(f"A process ended with {process.returncode}:\n{errors}")
        return None
    return {
        "moment": moment,
        "seconds": round(time.monotonic() - began, 3),
        "checkpoints": len(checkpoints_in(folder)),
        "inside_write": any(HALF_WRITTEN.fullmatch(name) for name in names_in(folder)),
    }


def one_run(name: str, kills: int, expected: dict[str, str], seconds: float, work: Path, seed: str):
    """A run killed up to `kills` times and resumed each time."""
    rng = random.Random(seed)
    folder = work / f"{name}.checkpoint"
    shutil.rmtree(folder, ignore_errors=True)
    hits: list[dict] = []
    for number in range(kills):
        how = "resume" if "fit" in names_in(folder) else "begin"
        moment = MOMENTS[(number + rng.randrange(4)) % 4]
        hit = kill(start(name, folder, how), folder, moment, rng, seconds)
        if hit is None:
            break
        hits.append(hit)
    how = "resume" if "fit" in names_in(folder) else "begin"
    found = ended(start(name, folder, how))
    differs = [part for part in expected if found[part] != expected[part]]
    shutil.rmtree(folder, ignore_errors=True)
    return {"algorithm": name, "kills": hits, "differs": differs}


def summary(runs: list[dict]) -> dict:
    hits = [hit for run in runs for hit in run["kills"]]
    return {
        "kills": len(hits),
        "after_first_checkpoint": sum(hit["checkpoints"] > 0 for hit in hits),
        "inside_write": sum(hit["inside_write"] for hit in hits),
        "runs": len(runs),
        "runs_that_differ": sum(bool(run["differs"]) for run in runs),
        "algorithms": len({run["algorithm"] for run in runs}),
    }


def main(arguments: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--per-run", type=int, default=KILLS_PER_RUN)
    parser.add_argument("--algorithms", nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", type=Path, help="where the runs are kept meanwhile")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no run after so many")
    parser.add_argument("--child", nargs=3)
    given = parser.parse_args(arguments)
    if given.child:
        child(*given.child)
        return {}
    from bayeslearn.algorithms import ALGORITHMS

    names = given.algorithms or [*ALGORITHMS, *CASES]
    results: dict = {"expected": {}, "seconds": {}, "runs": []}
    if given.out and given.out.exists():
        results |= json.loads(given.out.read_text())
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=given.work) as work:
        while summary(results["runs"])["kills"] < given.kills:
            if time.monotonic() - began > given.seconds:
                break
            counts = {n: 0 for n in names}
            for run in results["runs"]:
                counts[run["algorithm"]] = counts.get(run["algorithm"], 0) + max(
                    1, len(run["kills"])
                )
            name = min(names, key=lambda n: counts[n])
            if name not in results["seconds"]:
                process = start(name, Path(work) / f"{name}.whole.checkpoint", "whole")
                process.stdout.readline()  # it is ready
                since = time.monotonic()
                results["expected"][name] = ended(process)
                results["seconds"][name] = time.monotonic() - since
            left = given.kills - summary(results["runs"])["kills"]
            run = one_run(
                name,
                min(given.per_run, left),
                results["expected"][name],
                results["seconds"][name],
                Path(work),
                seed=f"{name} {len(results['runs'])}",
            )
            results["runs"].append(run)
            results["summary"] = summary(results["runs"])
            print(name, len(run["kills"]), "kills", run["differs"] or "the same bits", flush=True)
            if given.out:
                given.out.parent.mkdir(parents=True, exist_ok=True)
                given.out.write_text(json.dumps(results, indent=1))
    print(json.dumps(results.get("summary", {})))
    return results


if __name__ == "__main__":
    main()
