"""`bayeslearn demo`: every method, briefly, on two tables that scikit-learn carries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

BRIEF: dict[str, Any] = {"splits": 2, "num_steps": 300, "hidden": (10,)}


def brief(methods: str) -> list[Any]:
    """The methods asked for; those that would take minutes in a shorter form."""
    import bayeslearn as bl
    from bayeslearn.tabular.compare.plan import DEFAULT

    short = {
        "hmc": bl.HMC(num_warmup=150, num_samples=150, max_leapfrog=32),
        "nuts": bl.NUTS(num_warmup=150, num_samples=150, max_doublings=5),
        "metropolis-hastings": bl.MetropolisHastings(num_warmup=1000, num_samples=1000),
        "von": bl.VON(num_draws=1),
    }
    named = {"default": list(DEFAULT), "all": list(bl.ALGORITHMS)}
    return [short.get(name, name) for name in named.get(methods) or methods.split(",")]


def write_tables(folder: Path) -> list[tuple[Path, str]]:
    """CSV files as a user would have them, and the column to predict.

    diabetes: 442 patients, and how their illness progressed in a year. tumours: 569 biopsies, and
    what was found.
    """
    from sklearn.datasets import load_breast_cancer, load_diabetes

    diabetes = load_diabetes(as_frame=True, scaled=False).frame
    tumours = load_breast_cancer(as_frame=True)
    found = tumours.target.map(dict(enumerate(tumours.target_names)))
    folder.mkdir(exist_ok=True)
    written = []
    for name, frame, target in (
        ("diabetes", diabetes.rename(columns={"target": "progression"}), "progression"),
        ("tumours", tumours.data.assign(diagnosis=found), "diagnosis"),
    ):
        path = folder / f"{name}.csv"
        frame.to_csv(path, index=False)
        written.append((path, target))
    return written
