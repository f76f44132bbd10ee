"""Write the files of `tests/data/format-1/fixtures.tar.gz`, and digests of small fits.

    python tests/make_fixtures.py fixtures FOLDER   # saved posteriors, cut runs, expected numbers
    python tests/make_fixtures.py digests FILE      # SHA-256 of small fits of every algorithm

Fixtures were written once, by the code of their format version, and are never written again: they
show that files of that time still load and resume. Digests hold on one machine and one version of
JAX: write them before and after a change that is to leave results alone, and compare.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tarfile
import tempfile
import warnings
from pathlib import Path

import jax
import numpy as np
from fixtures import CASES, data_of, fit_options, new_rows, numbers_of

import bayeslearn as bl

CUT_STEPS = 40


def _cut(run: Path) -> None:
    """Leave a run as a kill in its middle would: with the earlier half of its checkpoints."""
    names = sorted(path.name for path in run.iterdir() if path.name.startswith("checkpoint-"))
    for name in names[max(1, len(names) // 2) :]:
        shutil.rmtree(run / name)
    for name in names[: max(1, len(names) // 2) - 1]:
        shutil.rmtree(run / name)
    (last,) = [path for path in run.iterdir() if path.name.startswith("checkpoint-")]
    description = json.loads((last / "manifest.json").read_text())["description"]
    used = {ref[0] for ref in (*description["finished"].values(), *description["parts"])}
    for path in list(run.iterdir()):
        if path.name.startswith("part-") and path.name not in used:
            shutil.rmtree(path)


def make_fixtures(out: Path) -> None:
    out.mkdir(parents=True)
    expected = {}
    for name, case in CASES.items():
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run, kept = Path(folder) / "run", {}
            if case.is_resumed:
                kept = {"checkpoint": bl.Checkpoint(run, every=15, keep=10_000)}
            posterior = bl.fit(
                case.model(), case.algorithm(), data_of(case), seed=0, **fit_options(case), **kept
            )
            if case.is_updated:
                posterior = posterior.update(data_of(case), **fit_options(case))
            (out / name).mkdir()
            posterior.save(out / name / "posterior")
            if case.is_resumed:
                _cut(run)
                shutil.copytree(run, out / name / "run")
        expected[name] = numbers_of(posterior, case)
    for kind, y in (("regressor", None), ("classifier", "labels")):
        x, values = new_rows(30), np.sin(np.arange(30.0))
        labels = np.where(values > 0, "high", "low")
        cls = bl.BayesianNNRegressor if y is None else bl.BayesianNNClassifier
        estimator = cls(hidden=(3,), num_steps=50, random_state=0)
        estimator.fit(x, values if y is None else labels)
        estimator.save(out / kind)
        predict = estimator.predict if y is None else estimator.predict_proba
        expected[kind] = {"predicted": np.asarray(predict(x)).ravel().tolist()}
    (out / "expected.json").write_text(json.dumps(expected))
    with tarfile.open(out.with_suffix(".tar.gz"), "w:gz") as archive:
        for path in sorted(out.rglob("*")):
            archive.add(path, path.relative_to(out), recursive=False)


def digest(value: object) -> str:
    hashed = hashlib.sha256()
    for leaf in jax.tree.leaves(value):
        array = np.ascontiguousarray(leaf)
        hashed.update(repr((array.shape, array.dtype.name)).encode())
        hashed.update(array.reshape(-1).view(np.uint8).data)
    return hashed.hexdigest()[:16]


def digests() -> dict[str, str]:
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, case in CASES.items():
            posterior = bl.fit(
                case.model(), case.algorithm(), data_of(case), seed=0, **fit_options(case)
            )
            trace = {k: posterior.trace[k] for k in sorted(posterior.trace)}
            found[name] = digest(jax.tree.leaves(posterior.family))
            found[f"{name} trace"] = digest(list(trace.values()))
            print(name, found[name], flush=True)
        x, y = new_rows(40), np.sin(np.arange(40.0))
        weight = np.where(np.arange(40) % 3 == 0, 2.0, 1.0)
        for label, options in {
            "default": {},
            "validation": {"validation_fraction": 0.2, "num_steps": 60},
            "hmc": {"method": bl.HMC(num_warmup=20, num_samples=20)},
        }.items():
            regressor = bl.BayesianNNRegressor(hidden=(3,), random_state=0, **options)
            found[f"regressor {label}"] = digest(regressor.fit(x, y, weight).predict(x))
            print(f"regressor {label}", flush=True)
        classifier = bl.BayesianNNClassifier(hidden=(3,), random_state=0)
        found["classifier"] = digest(classifier.fit(x, y > 0).predict_proba(x))
        several = bl.fit(
            bl.Model(bl.networks.MLP([3]), bl.likelihoods.Gaussian()),
            bl.BayesByBackprop(),
            (x, y),
            seed=0,
        )
        found["several starts"] = digest(jax.tree.leaves(several.family))
        batches = [(x[i : i + 8], y[i : i + 8]) for i in range(0, 40, 8)]
        stream = bl.fit(
            bl.Model(bl.networks.MLP([3]), bl.likelihoods.Gaussian()),
            bl.VOGN(),
            batches,
            seed=0,
            num_steps=30,
        )
        found["stream"] = digest(jax.tree.leaves(stream.family))
    return found


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    command, place = sys.argv[1:]
    if command == "fixtures":
        make_fixtures(Path(place))
    else:
        Path(place).write_text(json.dumps(digests(), indent=1))
