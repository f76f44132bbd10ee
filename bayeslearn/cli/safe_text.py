"""Text of others on a terminal and in spreadsheets: escapes are shown, formulas are text."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # with which a cell begins that a spreadsheet executes
TEXT_MARK = "'"  # before them it is text
LAYOUT = "\n\t"
HIDDEN = ("Cc", "Cf", "Cs", "Co")  # control characters, direction marks and the like


def visible(text: str) -> str:
    r"""With control characters as escapes, such as \x1b: a file's name cannot move the cursor."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in HIDDEN and character not in LAYOUT
        else character
        for character in text
    )


def without_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """Text that a spreadsheet would execute has an apostrophe before it, also in column names."""
    import pandas as pd

    def plain(cell: object) -> object:
        if not isinstance(cell, str) or not cell.lstrip(" ").startswith(FORMULAS):
            return cell
        return cell if _is_number(cell) else TEXT_MARK + cell

    made = {}
    for i in range(table.shape[1]):
        column = table.iloc[:, i]
        is_text = not pd.api.types.is_numeric_dtype(column.dtype)
        made[i] = column.map(plain) if is_text else column
    found = pd.DataFrame(made, index=table.index)
    return found.set_axis([plain(name) for name in table.columns], axis=1)


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return False
    return True
