"""Every sampler with its defaults on every gold posterior: errors, warnings, gradients, seconds.

    python benchmarks/gold.py                                  # about 20 minutes on two cores
    python benchmarks/gold.py --models garch --samplers nuts hmc --seeds 3
    python benchmarks/gold.py false-alarms --seeds 100         # of correct runs on easy models
    python benchmarks/gold.py table

The rule: means within 0.1 posterior sds and sds within 5 %, each plus three Monte-Carlo errors; a
run that breaks it has to warn. Results are added to `benchmarks/results/gold.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

import gold  # noqa: E402

import bayeslearn as bl  # noqa: E402

OUT = ROOT / "benchmarks" / "results" / "gold.json"
SAMPLERS = ("nuts", "hmc", "mams", "mclmc", "metropolis-hastings")
EASY = ("linear", "logistic")


def run(model: gold.Gold, sampler: str, seed: int, reference: dict) -> dict:
    """One fit with defaults, and what became of it."""
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = model.fit(bl.ALGORITHMS[sampler](), seed)
    except bl.BayesLearnError as error:
        return {"error": str(error)}
    seconds = time.perf_counter() - began
    found = gold.errors(model.quantities(posterior), reference)
    trace = posterior.trace
    gradients = [trace[n].sum() for n in ("num_gradients", "warmup_num_gradients") if n in trace]
    return {
        **found._asdict(),
        "warning": posterior.diagnostics().warning,
        "notes": list(posterior.notes),
        "gradients": int(sum(gradients)),
        "seconds": seconds,
        "compiling": posterior.compile_time,
        "load": os.getloadavg()[0],
    }


def stored() -> dict:
    return json.loads(OUT.read_text()) if OUT.exists() else {}


def keep(key: str, result: dict) -> None:
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(stored() | {key: result}, indent=1))


def measure(args: argparse.Namespace) -> None:
    references = gold.references()
    for name in [name for name in args.models if name in references]:
        model = gold.MODELS[name]()
        for sampler in args.samplers:
            for seed in range(args.seeds):
                key = f"{name} {sampler} {seed}"
                if key in stored() and not args.again:
                    continue
                result = run(model, sampler, seed, references[name])
                keep(key, result)
                print(key, verdict(result), result, flush=True)


def verdict(result: dict) -> str:
    """What matters of a run: a wrong one that does not warn is the worst."""
    if "error" in result:
        return "failed"
    if result["is_within"]:
        return "right, warned" if result["warning"] else "right"
    return "warned" if result["warning"] else "WRONG"


def false_alarms(args: argparse.Namespace) -> None:
    """Warnings of runs that are right: at most 2 of 100."""
    references = gold.references()
    for name in [name for name in args.models if name in EASY]:
        model = gold.MODELS[name]()  # once: every run of a sampler is one program
        for sampler in args.samplers:
            found = [run(model, sampler, seed, references[name]) for seed in range(args.seeds)]
            verdicts = [verdict(result) for result in found]
            counts = {v: verdicts.count(v) for v in sorted(set(verdicts))}
            reasons = sorted({result["warning"][:90] for result in found if result["warning"]})
            keep(f"alarms {name} {sampler}", {"counts": counts, "reasons": reasons})
            print(name, sampler, counts, reasons, flush=True)


def table(args: argparse.Namespace) -> None:
    """Markdown."""
    results = stored()
    print("| model | sampler | error of means, sds | of sds | ESS | verdict | gradients | s |")
    print("|---|---|---|---|---|---|---|---|")
    for name in args.models:
        for sampler in args.samplers:
            of_seeds = [v for k, v in results.items() if k.startswith(f"{name} {sampler} ")]
            sound = [r for r in of_seeds if "error" not in r]
            if not of_seeds:
                continue
            words = [verdict(r) for r in of_seeds]
            counts = ", ".join(
                f"{w} {words.count(w)}" if len(words) > 1 else w for w in dict.fromkeys(words)
            )
            if not sound:
                print(f"| {name} | {sampler} | | | | {counts} | | |")
                continue
            worst = {k: max(r[k] for r in sound) for k in ("mean", "std", "gradients", "seconds")}
            least = min(r["ess"] for r in sound)
            print(
                f"| {name} | {sampler} | {worst['mean']:.3f} | {worst['std']:.3f} | {least:.0f} |"
                f" {counts} | {worst['gradients']:,} | {worst['seconds']:.1f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = {"run": measure, "false-alarms": false_alarms, "table": table}
    parser.add_argument("what", nargs="?", choices=what, default="run")
    parser.add_argument("--models", nargs="+", choices=gold.MODELS, default=list(gold.MODELS))
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=list(SAMPLERS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="also what is there already")
    args = parser.parse_args()
    what[args.what](args)


if __name__ == "__main__":
    main()
