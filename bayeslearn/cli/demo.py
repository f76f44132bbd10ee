"""The tables and methods of `bayeslearn demo`: every method, briefly, on scikit-learn's data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bayeslearn.cli.flags import NetworkOptions

if TYPE_CHECKING:
    import bayeslearn as bl

NETWORK = NetworkOptions(hidden=(5,), num_steps=400)
SPLITS = 2
SHORT: dict[str, dict[str, int]] = {  # of methods that would take minutes
    "hmc": {"num_warmup": 150, "num_samples": 150, "max_leapfrog": 32},
    "nuts": {"num_warmup": 150, "num_samples": 150, "max_doublings": 5},
    "mams": {"num_warmup": 150, "num_samples": 150, "max_steps": 32},
    "mclmc": {"num_warmup": 1000, "num_samples": 200, "thin": 2},
    "metropolis-hastings": {"num_warmup": 1000, "num_samples": 1000},
    "ensemble": {"num_members": 4},
    "ngvi": {"num_draws": 8},
    "von": {"num_draws": 1},
}


def short_methods(methods: str) -> list[str | bl.Algorithm]:
    """The methods by name; those that would take minutes in a shorter form."""
    import bayeslearn as bl
    from bayeslearn.tabular.compare.plan import DEFAULT_METHODS

    def short(name: str) -> str | bl.Algorithm:
        if name == "mile":
            chains = bl.ALGORITHMS["mclmc"](num_warmup=500, num_samples=50, thin=2)
            return bl.ALGORITHMS["mile"](num_members=4, sampler=chains)
        return bl.ALGORITHMS[name](**SHORT[name]) if name in SHORT else name

    named = {"default": list(DEFAULT_METHODS), "all": list(bl.ALGORITHMS)}
    return [short(name) for name in named.get(methods) or methods.split(",")]


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
