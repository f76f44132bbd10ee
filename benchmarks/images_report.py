"""Tables and pictures of `images.py`.

python benchmarks/images_report.py --data DIR [--fashion DIR]
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from images_data import load

RESULTS = Path(__file__).parent / "results" / "images"
FIGURES = Path(__file__).parents[1] / "docs" / "figures"
PLAIN = "adamw"
SHOWN = ("map", "ensemble", "ivon", "laplace", "laplace-last")  # rows of the pictures
NUMBERS = {
    "accuracy": ("accuracy", ".2f"),
    "nll": ("NLL", ".3f"),
    "ece": ("ECE", ".3f"),
    "brier": ("Brier", ".3f"),
    "accuracy_kept": ("at 80 %", ".2f"),
    "auroc_other": ("AUROC other", ".3f"),
    "auroc_rotated": ("AUROC rotated", ".3f"),
    "std_ratio": ("std ratio", ".3f"),
    "seconds": ("s", ".1f"),
    "cpu_seconds": ("CPU s", ".1f"),
    "peak_bytes": ("peak GB", ".2f"),
}


def row(cell: dict) -> str:
    """A line of the table."""
    options = "".join(f" {k}={v}" for k, v in cell["variant"].items())
    shown = []
    for name, (_, style) in NUMBERS.items():
        value = cell.get(name)
        value = value / 2**30 if value is not None and name == "peak_bytes" else value
        shown.append("-" if value is None else format(value, style))
    return f"| {cell['method']}{options} | " + " | ".join(shown) + " |"


def table(folder: Path = RESULTS) -> str:
    """Means over seeds, for each data set and method."""
    groups: dict[tuple, list[dict]] = {}
    for path in sorted(folder.glob("*.json")):
        cell = json.loads(path.read_text())
        title = f"{cell['data']}, {cell.get('network', 'cnn')}"
        groups.setdefault((title, cell["method"], str(cell["variant"])), []).append(cell)
    lines, name = [], None
    for key, cells in sorted(groups.items(), key=lambda item: (item[0][0], item[1][0]["nll"])):
        numbers = {
            k: statistics.fmean(cell[k] for cell in cells)
            for k in NUMBERS
            if all(cell.get(k) is not None for cell in cells)
        }
        if key[0] != name:
            name, first = key[0], cells[0]
            heads = " | ".join(head for head, _ in NUMBERS.values())
            lines += [
                f"\n{name}: {first['rows']:,} rows, {first['steps']} steps of"
                f" {first['batch_size']}, {first['test_rows']:,} test rows, {first['device']}\n",
                f"| method | {heads} |",
                "|---" * (len(NUMBERS) + 1) + "|",
            ]
        unknown = dict.fromkeys(NUMBERS)
        lines.append(row(cells[0] | unknown | numbers))
    return "\n".join(lines)


def picture(name: str, data: Path, fashion: Path | None, folder: Path = RESULTS) -> None:
    """The test images of which each method is least sure: what it says, and what is right."""
    import matplotlib.pyplot as plt

    images = load(data, fashion, name)[2]
    found = {m: folder / f"{name}-{m}-0.json" for m in SHOWN}
    found = {m: json.loads(path.read_text()) for m, path in found.items() if path.exists()}
    num = len(next(iter(found.values()))["most_uncertain"])
    size = (1.05 * num + 0.8, 1.35 * len(found))
    figure, axes = plt.subplots(len(found), num, figsize=size, squeeze=False)
    for line, (method, cell) in zip(axes, found.items(), strict=True):
        for axis, one in zip(line, cell["most_uncertain"], strict=True):
            axis.imshow(images[one["row"]], cmap="gray_r")
            color = "tab:green" if one["says"] == one["is"] else "tab:red"
            axis.set_title(f"{one['says']} ({one['is']})", fontsize=9, color=color, pad=2)
            axis.set_xticks([])
            axis.set_yticks([])
        line[0].set_ylabel(method, fontsize=9)
    figure.tight_layout(pad=0.4)
    figure.savefig(FIGURES / f"images_{name}.png", dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--fashion", type=Path)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    for name in ("mnist", "fashion_mnist"):
        if any(arguments.results.glob(f"{name}-*.json")):
            picture(name, arguments.data, arguments.fashion, arguments.results)


if __name__ == "__main__":
    main()
