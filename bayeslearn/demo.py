"""The tables of `bayeslearn demo`, which scikit-learn carries."""

from __future__ import annotations

from pathlib import Path


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
