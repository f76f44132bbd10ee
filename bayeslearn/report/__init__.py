"""The report: one HTML file that shows what was fitted, how far to trust it, and what it cost.

    contents = report.from_fit(estimator, X_train, y_train, X_test, y_test)
    report.write(contents, "report.html")

The contents are plain data that JSON can hold; the page is made of nothing else, so that it can be
written again from a stored file, without the data and without JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayeslearn.report.page import render, write

if TYPE_CHECKING:
    from bayeslearn.report.contents import from_comparison, from_fit

__all__ = ["from_comparison", "from_fit", "render", "write"]


def __getattr__(name: str) -> object:
    if name in ("from_comparison", "from_fit"):
        from bayeslearn.report import contents

        return getattr(contents, name)
    raise AttributeError(f"module 'bayeslearn.report' has no attribute {name!r}")
