"""Code, tests and pages use the field's words: names and words that were retired do not return.

Only names of our own making are listed. Ordinary English ("held-out rows", "what is left", "the
whole run") is not, also where a retired name was such a word.
"""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("bayeslearn", "tests", "docs", "benchmarks")
LEGACY = ROOT / "bayeslearn" / "storage" / "legacy.py"  # maps the names of old files
FILES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".md") and path not in (Path(__file__), LEGACY)
)

# As identifiers in code, and between backticks in pages.
NAMES = frozenset(
    [
        "FRESH_LOOKS",
        "SUNK_LOOKS",
        "left_to_looks",
        "look",
        "looks",
        "told",
        "_told",
        "Told",
        "asked",
        "ASKED",
        "held",
        "spread",
        "_Setting",
        "at_home",
        "any_asks",
        "Progressed",
        "_again",
        "_model_again",
        "run_again",
        "taken_draws",
        "_stirred",
        "stirred",
        "STIRRED",
        "STIRRED_STEPS",
        "stirrer",
        "WORTH",
        "_tried",
        "_Warm",
        "STRAYED",
        "CHEAP",
        "ODD_SCALE",
        "NARROWEST",
        "WIDEST",
        "courses",
        "Course",
        "Walk",
        "sinks",
        "stray",
        "may_stray",
        "hasten",
        "HASTE",
        "LUCK",
        "CALM_ROUNDS",
        "Lanes",
        "everyones",
        "_apart",
        "meetings",
        "tries_starts",
        "takes_q",
        "settled",
        "remarks",
        "Falling",
        "over_the_run",
        "hold_spectrum",
        "hold_mean",
        "EVEN",
        "CAUTION",
        "step_share",
        "prior_share",
        "Outer",
        "Keeper",
        "ROOMS",
        "spoiled",
        "coming",
        "_loose",
        "check_given",
        "like_mean",
        "doubt",
        "_one_form",
        "_filled",
        "is_right",
        "Speaker",
        "translated",
    ]
)
# As a part of an identifier: `a_look_at`, `num_looks`.
PARTS = frozenset({"told", "look", "looks", "stirred", "stirrer"})
# In comments, docstrings, messages and pages.
WORDS = re.compile(
    r"\btold\b"
    r"|\bstirr(?:ed|er|ing)\b"
    r"|\b(?:a|an|each|every|next|last|first|final|one|another|closer) look\b"
    r"|\b(?:the|these|two|few|many|all|between|\d+) looks\b"
    r"|\bat home\b"
    r"|\bunless said\b",
    re.IGNORECASE,
)
CODE = re.compile(r"`([^`\n]+)`")
NAME = re.compile(r"[A-Za-z_]\w*")


def retired_names(text: str) -> list[str]:
    """Of the identifiers in some code, those that were retired."""
    return [
        name
        for name in NAME.findall(text)
        if name in NAMES or PARTS & set(name.lower().strip("_").split("_"))
    ]


def hits_in_code(text: str) -> list[str]:
    """Retired names among the identifiers, retired words in comments and strings."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            found += [f"{token.start[0]}: {name}" for name in retired_names(token.string)]
        elif token.type in (tokenize.COMMENT, tokenize.STRING):
            found += [f"{token.start[0]}: {word}" for word in WORDS.findall(token.string)]
    return found


def hits_in_page(text: str) -> list[str]:
    """Retired words, and retired names between backticks."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        found += [f"{number}: {word}" for word in WORDS.findall(line)]
        for code in CODE.findall(line):
            found += [f"{number}: {name}" for name in retired_names(code)]
    return found


def hits(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return hits_in_code(text) if path.suffix == ".py" else hits_in_page(text)


def test_retired_words_are_found_and_others_are_not():
    assert hits_in_code("num_looks = 3  # as we are told\n") == ["1: num_looks", "1: told"]
    assert hits_in_code('"""The looks between steps, each look at home."""\n') == [
        "1: The looks",
        "1: each look",
        "1: at home",
    ]
    assert hits_in_code("x = 1  # it looks at held-out rows; what is left\n") == []
    assert hits_in_page("Call `Keeper.look` once.") == ["1: Keeper", "1: look"]
    assert hits_in_page("Held-out rows look like the others.") == []


def test_no_retired_word():
    found = {path.relative_to(ROOT).as_posix(): hits(path) for path in FILES}
    assert {name: words for name, words in found.items() if words} == {}
