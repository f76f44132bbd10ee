"""Small tables and pictures as HTML, for notebooks. Everything of the user's is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

import numpy as np

WIDTH, HEIGHT = 160, 24  # of a trace
BAND_WIDTH, BAND_HEIGHT = 320, 110
LONG = 400  # characters of a cell


class Drawn(str):
    """Markup made here, which is not escaped."""


def block(title: str, *parts: str) -> str:
    """A title and what is below it: lines of text, escaped, or what the functions below made."""
    lines = [part if isinstance(part, Drawn) else f"<div>{_text(part)}</div>" for part in parts]
    return f'<div class="bayeslearn"><div><b>{_text(title)}</b></div>{"".join(lines)}</div>'


def pairs(values: Mapping[str, object]) -> Drawn:
    """Names beside values."""
    return table((), [[name, value] for name, value in values.items()])


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Drawn:
    """A table whose first column names the rows."""
    top = "".join(f'<th scope="col" style="text-align:right">{_text(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row" style="text-align:left">{_text(first)}</th>'
        + "".join(f'<td style="text-align:right">{_text(cell)}</td>' for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return Drawn(f"<table>{f'<thead><tr>{top}</tr></thead>' if head else ''}{body}</table>")


def trace(values: np.ndarray, label: str) -> Drawn:
    """A line without axes; the lowest tenth is clipped, for a run begins far below its end."""
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return Drawn("")
    low, high = np.quantile(values, 0.1), np.max(values)
    heights = np.clip((values - low) / (high - low if high > low else 1.0), 0.0, 1.0)
    across = np.linspace(1, WIDTH - 1, len(values))
    line = _points(across, HEIGHT - 1 - heights * (HEIGHT - 2))
    return Drawn(
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{escape(label)}">'
        f'<polyline points="{line}" fill="none" stroke="currentColor"/></svg>'
    )


def band(middle: np.ndarray, half_width: np.ndarray, label: str) -> Drawn:
    """Values from left to right, each with its interval."""
    low, high = np.min(middle - half_width), np.max(middle + half_width)
    if not np.isfinite(high - low):
        return Drawn("")
    across = np.linspace(4, BAND_WIDTH - 4, len(middle)) if len(middle) > 1 else [BAND_WIDTH / 2]

    def height(values: np.ndarray) -> np.ndarray:
        scaled = (values - low) / (high - low if high > low else 1.0)
        return BAND_HEIGHT - 4 - scaled * (BAND_HEIGHT - 8)

    marks = "".join(
        f'<path d="M{x:.1f} {bottom:.1f}V{top:.1f}"/>'
        for x, bottom, top in zip(
            across, height(middle - half_width), height(middle + half_width), strict=True
        )
    )
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2"/>'
        for x, y in zip(across, height(middle), strict=True)
    )
    return Drawn(
        f'<div><svg width="{BAND_WIDTH}" height="{BAND_HEIGHT}" role="img"'
        f' aria-label="{escape(label)}"><g stroke="currentColor" stroke-opacity=".35"'
        f' stroke-width="2">{marks}</g><g fill="currentColor">{dots}</g></svg></div>'
    )


def _points(across: np.ndarray, heights: np.ndarray) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, heights, strict=True))


def _text(value: object) -> str:
    if isinstance(value, Drawn):
        return value
    text = str(value)
    return escape(text if len(text) <= LONG else text[: LONG - 1] + "…")
