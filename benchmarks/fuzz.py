"""Saved posteriors and checkpoints broken at random: the named error, or what was saved.

    python benchmarks/fuzz.py --trials 10000 --out benchmarks/results/fuzz.json

A trial breaks one file of a folder: its bytes (cut, lengthened, bits and words changed), or, with
all checksums made anew (every second trial), its arrays' bytes or the JSON of its manifest. Without
new checksums `bl.load` and `bl.resume` must refuse it with a `BayesLearnError`, or give what was
saved. With them a file may say something else that is sound; then the result must be able to do its
work. Anything else, such as another exception, counts as a failure. The request of a run (its
number of steps, say) is taken at its word if its checksum is right, and is left alone here.

The process may take GROWTH bytes of address space beyond what it had before the first trial, and
an audit hook watches for processes, sockets, foreign libraries, pickles, and files opened for
writing outside the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import jax
import numpy as np
from faithfulness import write_cell
from mutations import break_bytes, break_json, seal, with_checksums

import bayeslearn as bl
from bayeslearn.storage import folders

GROWTH = 2**30
LONGEST = 30  # seconds for a trial
FORBIDDEN = {
    *("os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen"),
    *("socket.connect", "pickle.find_class", "ctypes.dlopen", "webbrowser.open"),
}


class Watch:
    """What must not happen while something is loaded."""

    def __init__(self, folder: Path):
        self.folder, self.is_on, self.seen = str(folder), False, []
        sys.addaudithook(self.hook)

    def hook(self, event, args):
        if not self.is_on:
            return
        if event in FORBIDDEN:
            self.seen.append(f"{event} {args!r:.100}")
        elif event == "open" and isinstance(args[0], str) and isinstance(args[2], int):
            writes = args[2] & (os.O_WRONLY | os.O_RDWR)
            is_cache = args[0].startswith(os.environ.get("JAX_COMPILATION_CACHE_DIR", "\0"))
            if writes and not is_cache and not args[0].startswith((self.folder, "/dev/")):
                self.seen.append(f"open {args[0]} for writing")


def problem():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 2))
    return x, x[:, 0] + 0.1 * rng.normal(size=12)


def make(folder: Path, wanted: list[str] | None) -> dict[str, tuple[Path, object]]:
    """Folders to break: posteriors of several families, and runs with all kinds of parts."""
    data = problem()
    model = bl.Model(bl.networks.MLP([2]), bl.likelihoods.Gaussian())
    walk = bl.MetropolisHastings(num_warmup=20, num_samples=20, thin=1)
    fits = {
        "point": ("map", {"num_steps": 20}),
        "diagonal": ("vogn", {"num_steps": 20}),
        "full": ("von", {"num_steps": 20}),
        "draws": (walk, {"num_chains": 2}),
    }
    made = {}
    for name, (algorithm, options) in fits.items():
        run = folder / f"run of {name}"
        if wanted and not {name, run.name} & set(wanted):
            continue
        found = bl.fit(
            model, algorithm, data, seed=0, checkpoint=bl.Checkpoint(run, every=10), **options
        )
        found.save(folder / name)
        made[name] = (folder / name, found)
        made[run.name] = (run, found)
    return made


def broken(folder: Path, rng: random.Random, is_sealed: bool) -> Path:
    """Break one file of a folder of arrays, and recompute its checksums if requested."""
    manifest, arrays = (folder / name for name in (folders.MANIFEST, folders.ARRAYS))
    if not is_sealed:
        path = rng.choice((manifest, arrays))
        path.write_bytes(break_bytes(rng, path.read_bytes()))
        return path
    parsed = json.loads(manifest.read_bytes())
    if rng.random() < 0.3:
        content = break_bytes(rng, arrays.read_bytes())
        arrays.write_bytes(content)
        parsed = with_checksums(parsed, content)
    else:
        options = request_options(parsed)
        break_json(rng, parsed)
        if options is not None and request_options(parsed) != options:
            return manifest
    manifest.write_bytes(seal(parsed))
    return manifest


def request_options(manifest):
    try:
        return json.dumps(dict(manifest["description"]["asked"]["dict"])["options"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


class TooLong(BaseException):
    pass


def expired(*_):
    raise TooLong


def equal(a, b) -> bool:
    mine, other = (jax.tree.leaves((p.family, p.trace)) for p in (a, b))
    return len(mine) == len(other) and all(
        np.array_equal(u, v, equal_nan=True) for u, v in zip(mine, other, strict=True)
    )


def trial(name: str, sound: Path, expected, work: Path, rng: random.Random, is_sealed: bool) -> str:
    folder = work / "broken"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    is_run = name.startswith("run of")
    inner = rng.choice(sorted(p for p in folder.iterdir() if p.is_dir())) if is_run else folder
    broken(inner, rng, is_sealed)
    signal.setitimer(signal.ITIMER_REAL, LONGEST)
    try:
        found = bl.resume(folder, problem()) if is_run else bl.load(folder)
        if not is_sealed:
            return "equal" if equal(found, expected) else "FAILED: another posterior"
        repr(found)
        found.summary()
        return "equal" if equal(found, expected) else "another, sound"
    except bl.BayesLearnError as error:
        return f"refused: {type(error).__name__}"
    except TooLong:
        return "FAILED: too long"
    except Exception as error:
        return f"FAILED: {type(error).__name__}: {error}"[:300]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def main(arguments: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--kinds", nargs="*", help="of what `make` makes")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    counts: Counter = Counter()
    failures = []
    signal.signal(signal.SIGALRM, expired)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        made = make(work, given.kinds)
        names = given.kinds or sorted(made)
        for each in names:  # compile what sound folders need, and see that they are equal
            folder, expected = made[each]
            copy = work / "sound"
            shutil.copytree(folder, copy)
            is_run = each.startswith("run of")
            found = bl.resume(copy, problem()) if is_run else bl.load(copy)
            assert equal(found, expected), each
            shutil.rmtree(copy)
        before_peak, watch = peak(), Watch(work)
        limit = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (address_space() + GROWTH, limit[1]))
        watch.is_on = True
        for number in range(given.trials):
            rng = random.Random(f"{given.seed} {number}")
            is_sealed = number % 2 == 1
            kind = names[(number // 2) % len(names)]
            outcome = trial(kind, *made[kind], work, rng, is_sealed)
            counts[("sealed" if is_sealed else "plain") + ", " + outcome.split(":")[0]] += 1
            if outcome.startswith("FAILED"):
                failures.append({"trial": number, "kind": kind, "outcome": outcome})
                print(failures[-1], flush=True)
            if number % 500 == 499:
                print(number + 1, dict(counts), f"{time.monotonic() - began:.0f} s", flush=True)
        watch.is_on = False
        resource.setrlimit(resource.RLIMIT_AS, limit)
    results = {
        "trials": given.trials,
        "seed": given.seed,
        "counts": dict(sorted(counts.items())),
        "failures": failures,
        "forbidden_events": watch.seen,
        "resident_growth_mb": round((peak() - before_peak) / 1e6, 1),
        "address_space_bound_mb": round(GROWTH / 1e6, 1),
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(results))
    if given.out:
        write_cell(given.out, results)
    return results


if __name__ == "__main__":
    main()
