"""The tables of `rivals.py` and their splits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from faithfulness import read_table

R_CLASSES = (
    *("Glass", "Ionosphere", "PimaIndiansDiabetes", "Sonar", "Vehicle", "Vowel", "HouseVotes84"),
    *("Satellite", "spam", "musk", "segmentationData", "SwissLabor", "HMDA", "BankWages"),
    *("GlaucomaM", "birthwt", "crabs", "synth.te"),
)
R_NUMBERS = (
    *("Ozone", "Servo", "CASchools", "HousePrices", "CPS1985", "TeachingRatings", "PSID1982"),
    *("diamonds", "mpg", "quakes", "nlschools", "cpus", "GAGurine", "Sacramento", "cars"),
)
PACKAGE_CLASSES = (
    *("heart", "saheart", "bupa", "contraceptive", "mammographic", "tic-tac-toe", "tae"),
    *("segment", "phoneme", "ring", "magic", "led7digit", "penbased"),
    *("OJ", "attrition", "hpc_data"),
)
PACKAGE_NUMBERS = (
    *("ames", "deliveries", "meats", "car_prices", "Auto", "Hitters", "Carseats", "Computers"),
    *("NOxEmissions", "SLID", "Tobacco", "cps1"),
)
SYNTHETIC_ROWS = 600
SYNTHETIC_NOISE = {"friedman1": 1.0, "friedman2": 125.0, "friedman3": 0.1}


class Split(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


@dataclass(frozen=True)
class Table:
    """`splits`: "standard" (20 files of indices), "bde" (one 80/20 split in standardised units,
    three seeds) or "folds" (the five folds of a shuffled, for classes stratified, partition)."""

    kind: str
    origin: str  # "file" (of --data), "sklearn" or "synthetic"
    splits: str = "folds"

    @property
    def num_splits(self) -> int:
        return {"standard": 20, "bde": 3, "folds": 5}[self.splits]


TABLES = {
    **{
        name: Table("regression", "file", "standard")
        for name in ("yacht", "boston", "concrete", "wine_red", "kin8nm", "naval")
    },
    "airfoil": Table("regression", "file", "bde"),
    "bikesharing": Table("regression", "file", "bde"),
    "diabetes": Table("regression", "sklearn"),
    **{name: Table("regression", "synthetic") for name in (*SYNTHETIC_NOISE, "friedman1_censored")},
    **{name: Table("classification", "sklearn") for name in ("iris", "wine", "breast_cancer")},
    **{
        name: Table("classification", "file")
        for name in (
            "labour_mroz",
            "australian_scale",
            "breast_cancer_scale",
            "german_credit_vblab",
            "banana",
        )
    },
    "digits": Table("classification", "sklearn"),
    **{name: Table("classification", "file") for name in R_CLASSES},
    **{name: Table("regression", "file") for name in R_NUMBERS},
    **{name: Table("classification", "file") for name in PACKAGE_CLASSES},
    **{name: Table("regression", "file") for name in PACKAGE_NUMBERS},
}


def synthetic(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Friedman's functions with noise; `friedman1_censored` has a floor that two fifths of the rows
    share."""
    from sklearn import datasets

    base = name.removesuffix("_censored")
    noise = SYNTHETIC_NOISE[base]
    make = getattr(datasets, f"make_{base}")
    x, y = make(n_samples=SYNTHETIC_ROWS, noise=noise, random_state=0)
    if name.endswith("_censored"):
        y = np.maximum(y, np.quantile(y, 0.4))
    return x, y


def read(name: str, data: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Columns and target; classes are numbered from 0."""
    table = TABLES[name]
    if table.origin == "file":
        if data is None:
            raise SystemExit(f"{name} needs --data DIR")
        _, x, y = read_table(data / f"{name}.csv.gz")
    elif table.origin == "synthetic":
        x, y = synthetic(name)
    else:
        from sklearn import datasets

        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    x = np.asarray(x, np.float64)
    if table.kind == "classification":
        return x, np.unique(y, return_inverse=True)[1]
    return x, np.asarray(y, np.float64)


def indices(name: str, split: int, y: np.ndarray, data: Path | None) -> tuple:
    """Training and test rows."""
    from sklearn.model_selection import KFold, StratifiedKFold, train_test_split

    table = TABLES[name]
    rows = np.arange(len(y))
    if table.splits == "bde":
        return train_test_split(rows, test_size=0.2, random_state=0)
    if table.splits == "standard":
        assert data is not None
        stored = np.load(data / "splits" / f"{name}.npz")
        if "train" in stored:
            return stored["train"][split], stored["test"][split]
        test = stored[f"test_{split}"]
        return np.setdiff1d(rows, test), test
    folds = StratifiedKFold if table.kind == "classification" else KFold
    return [*folds(5, shuffle=True, random_state=0).split(rows, y)][split]


def load(name: str, split: int, data: Path | None) -> Split:
    """One split in the units of the table, or standardised by its training rows ("bde")."""
    x, y = read(name, data)
    train, test = indices(name, split, y, data)
    if TABLES[name].splits == "bde":
        x, y = standardised(x, x[train]), standardised(y, y[train])
    return Split(x[train], y[train], x[test], y[test])


def standardised(values: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Mean 0 and standard deviation 1 on the training rows; constant columns become 0."""
    std = train.std(axis=0)
    return (values - train.mean(axis=0)) / np.where(std > 0, std, 1.0)
