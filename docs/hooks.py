"""Parts of the pages are read from the code when the site is built.

A line such as `<!-- options vogn -->` in a page becomes the table of VOGN's settings:

    facts NAME      what an algorithm learns and needs
    equations NAME  the head of its file, with its paper's equations
    options NAME    its hyper-parameters, with defaults and documentation
    algorithms      the table of all algorithms
    gallery         a picture of every algorithm, by docs/gallery.py
    api MODULE      every public name of a module, with signature and documentation
"""

from __future__ import annotations

import inspect
import json
import operator
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MARKER = re.compile(
    r"^<!-- (facts|equations|options|algorithms|gallery|api) ?([\w.-]*) -->$", re.MULTILINE
)
GALLERY = Path(__file__).parent / "gallery"
PROMPT = ">>>"
SECTION = re.compile(r"^(Args|Attributes|Parameters):$")
# Named without an underscore because other modules of the library use them.
INTERNAL = {
    "diagnostics": {
        "all_rows",
        "check_generative",
        "convergence",
        "has_all_rows",
        "outputs_at_rows",
        "row_counts",
    },
    "plots": {"leaf_widths"},
    "priors": {
        "BlockPrior",
        "BySize",
        "CorrelatedPrior",
        "FanIn",
        "GaussianPrior",
        "LaplacePrior",
        "LowRankPrior",
        "ProductPrior",
        "ScaleMixturePrior",
    },
}


def on_config(config: Any) -> None:
    """This checkout is documented, whatever else is installed."""
    sys.path.insert(0, str(Path(__file__).parents[1]))


def on_page_markdown(markdown: str, **_: Any) -> str:
    return fill(markdown)


def fill(markdown: str) -> str:
    """The page with every marker replaced."""
    makers = {
        "facts": facts,
        "equations": folded if "\n$$\n" in markdown else equations,
        "options": options,
        "algorithms": lambda _: algorithms(),
        "gallery": lambda _: gallery(),
        "api": api,
    }
    return MARKER.sub(lambda found: makers[found[1]](found[2]), markdown)


def _algorithm(name: str) -> Any:
    return _algorithms()[name]


def facts(name: str) -> str:
    from bayeslearn.algorithms.facts import FACTS, needs

    cls, entry = _algorithm(name), FACTS[name]
    return "\n".join(
        [
            f"- `bl.{cls.__name__}()`, or the name `{name}`",
            f"- learns: {entry.posterior}",
            f"- for: {entry.when}",
            f"- needs: {needs(cls)}",
            f"- is judged by {_judged(cls)}",
            *_shown(name),
        ]
    )


def _shown(name: str) -> list[str]:
    """The picture of an algorithm on its page."""
    if _picture(name) is None:
        return []
    what = "one-dimensional data with a gap, and two moons"
    return [
        "",
        f"![{name} on {what}](../{_picture(name)}){{ .shown }}",
        "",
        f"*The 90 % band (pale) and that of the mean (dark), and class probabilities, on {what}:"
        f" {_seconds(name)}, compiling included.*",
    ]


def _judged(cls: Any) -> str:
    if cls.capabilities.is_sampler:
        return "R-hat and effective sample sizes"
    return "a lower bound on log p(D)" if cls.capabilities.has_lower_bound else "its objective"


def equations(name: str) -> str:
    """The head of the algorithm's file without its title."""
    head = inspect.getdoc(sys.modules[_algorithm(name).__module__]) or ""
    return head.partition("\n\n")[2]


def folded(name: str) -> str:
    """The same below typeset equations, folded."""
    text = textwrap.indent(equations(name), "    ")
    return f'??? note "Symbols and details, as the source file states them"\n\n{text}'


def gallery() -> str:
    """The pictures that there are, each with its seconds and a link to its page."""
    figures = [
        f'<figure markdown="span">[![{name}]({picture})](algorithms/{name}.md)'
        f"<figcaption>[**{name}**](algorithms/{name}.md): {_seconds(name)}</figcaption></figure>"
        for name in _algorithms()
        if (picture := _picture(name)) is not None
    ]
    return "\n".join(['<div class="gallery" markdown>', *figures, "</div>"])


def _algorithms() -> dict[str, Any]:
    import bayeslearn as bl

    return bl.ALGORITHMS


def _picture(name: str) -> str | None:
    return f"gallery/{name}.png" if (GALLERY / f"{name}.png").exists() else None


def _seconds(name: str) -> str:
    found = json.loads((GALLERY / "seconds.json").read_text("utf-8"))["seconds"].get(name, {})
    both = [found.get("wave"), found.get("moons")]
    return " and ".join("does not apply" if s is None else f"{s:g} s" for s in both)


def options(name: str) -> str:
    from bayeslearn.algorithms import hyper_parameters

    rows = ["| option | default | meaning |", "|---|---|---|"]
    for key, metadata in hyper_parameters(_algorithm(name)).items():
        choices = metadata["check"]["choices"]
        listed = f" ({', '.join(f'`{c}`' for c in choices)})" if choices else ""
        meaning = _cell(metadata["doc"] + listed)
        rows.append(f"| `{key}` | `{metadata['default']!r}` | {meaning} |")
    return "\n".join(rows)


def algorithms() -> str:
    import bayeslearn as bl
    from bayeslearn.algorithms.facts import FACTS, needs

    rows = ["| name | learns | needs | cost per step | memory | for |", "|---" * 6 + "|"]
    for name, cls in bl.ALGORITHMS.items():
        entry = FACTS[name]
        cells = [f"[{name}]({name}.md)", entry.posterior, needs(cls)]
        rows.append("| " + " | ".join([*cells, entry.cost, entry.memory, entry.when]) + " |")
    return "\n".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def public_names(module: Any) -> list[str]:
    """`__all__`, or what the module defines without a leading underscore; internal names apart."""
    names = getattr(module, "__all__", None)
    if names is None:
        names = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_")
            and callable(value)
            and getattr(value, "__module__", None) == module.__name__
        ]
    internal = INTERNAL.get(module.__name__.rpartition(".")[2], set())
    return [name for name in names if name not in internal]


def api(name: str) -> str:
    """A heading, a signature and the documentation for every public name."""
    import bayeslearn as bl

    module = bl if name == "bl" else operator.attrgetter(name.removeprefix("bl."))(bl)
    parts = [entry(f"{name}.{key}", getattr(module, key)) for key in public_names(module)]
    return "\n\n".join(parts)


def entry(name: str, value: Any) -> str:
    import bayeslearn as bl

    anchor = name.replace("__", "")  # which Markdown would read as bold
    lines = [f"### `{name}` {{ #{anchor} }}", ""]
    own_page = {cls: key for key, cls in bl.ALGORITHMS.items()}
    if inspect.ismodule(value):
        about, symbols = f"A module: {_first(value)} See [below](#{name}_1).", ""
        if name.count(".") > 1:  # its head defines the symbols of its functions
            about = f"{_first(value)} See [below](#{name}_1)."
            symbols = (inspect.getdoc(value) or "").partition("\n\n")[2]
        folded_head = f'\n\n??? note "Symbols and formulas"\n\n{textwrap.indent(symbols, "    ")}'
        lines.append(about + (folded_head if symbols else ""))
    elif isinstance(value, str):
        lines.append(f"`{value!r}`")
    elif isinstance(value, dict):
        lines.append("The algorithms by name: " + ", ".join(f"`{key}`" for key in value) + ".")
    elif inspect.isclass(value) and value in own_page:
        title = (value.__doc__ or "").partition("\n")[0]
        lines.append(f"{title} Its settings: [{own_page[value]}](algorithms/{own_page[value]}.md).")
        lines += ["", *examples(value)] if name == f"bl.{value.__name__}" else []
    elif inspect.isclass(value) and issubclass(value, Exception):
        lines.append(documented(value))
    elif inspect.isclass(value) and _main_name(value) != name:
        lines.append(f"{_first(value)} See [`{_main_name(value)}`](#{_main_name(value)}).")
    else:
        lines += ["```text", *wrapped(signature(name, value)), "```", "", documented(value)]
        if inspect.isclass(value):
            listed = [f"- {member}" for member in members(value)]
            lines += ["", "Methods and properties:", "", *listed] if listed else []
            lines += [line for part in with_examples(value) for line in part]
    return "\n".join(lines)


def _main_name(cls: type) -> str:
    """The name under which a class has its full entry, where it has two."""
    import bayeslearn as bl

    if cls.__name__ in bl.__all__:
        return f"bl.{cls.__name__}"
    (short,) = {
        short
        for short, module in bl._MODULES.items()
        if cls.__module__ == module or cls.__module__.startswith(f"{module}.")
    }
    module = getattr(bl, short)
    for name in getattr(module, "__all__", ()):  # of modules in it
        if inspect.ismodule(value := getattr(module, name)) and value.__name__ == cls.__module__:
            return f"bl.{short}.{name}.{cls.__name__}"
    return f"bl.{short}.{cls.__name__}"


def _first(value: Any) -> str:
    """The first sentence of the documentation."""
    text = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    return text if text.endswith(".") else text + "."


def signature(name: str, value: Any) -> str:
    """Arguments with defaults; the documentation says the types."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):  # written in C
        return f"{name}(...)"
    kept = [p.replace(annotation=p.empty) for p in found.parameters.values() if p.name != "self"]
    shown = ", ".join(_argument(p) for p in _with_star(kept))
    return f"{name}({shown})"


def wrapped(line: str) -> list[str]:
    """In lines that a page shows whole."""
    indent = " " * 4
    return textwrap.wrap(line, 72, subsequent_indent=indent, break_long_words=False)


def _with_star(parameters: list[Any]) -> Iterator[Any]:
    starred = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        yield p


def _argument(p: Any) -> str:
    if isinstance(p, str):
        return p
    if callable(p.default) and p.default is not p.empty:
        return f"{p.name}={getattr(p.default, '__name__', '...')}"
    return re.sub(r"<([\w.]+) .*?>", r"\1", str(p))


def members(cls: type) -> Iterator[str]:
    """Its own public methods and properties that say what they do."""
    for key, raw in vars(cls).items():
        value = raw if isinstance(raw, property) else getattr(cls, key, None)
        if key.startswith("_") or not getattr(value, "__doc__", None):
            continue
        if isinstance(value, property):
            yield f"`{key}`: {_first(value)}"
        elif inspect.isroutine(value) and value.__module__.startswith("bayeslearn"):
            yield f"`{signature(key, value)}`: {_first(value)}"


def examples(value: Any) -> list[str]:
    """The examples of a docstring alone, each as a block."""
    text = documented(value)
    return [block.group() for block in re.finditer(r"```pycon\n.*?\n```", text, re.DOTALL)]


def with_examples(cls: type) -> Iterator[list[str]]:
    """Its own public methods that have an example."""
    for key in vars(cls):
        value = getattr(cls, key, None)
        if not key.startswith("_") and inspect.isroutine(value) and PROMPT in (value.__doc__ or ""):
            yield ["", f"`{key}`:", "", *examples(value)]


def documented(value: Any) -> str:
    """The documentation, with its lists of arguments as tables."""
    lines: list[str] = []
    rows: list[list[str]] = []  # of the table that is being read
    columns = _parameters(value)
    inside, indent, section = False, 0, ""

    def end_table() -> None:
        if rows:
            lines.extend([*_table(rows, columns, section), ""])
            rows.clear()

    is_example = False
    for line in [*(inspect.getdoc(value) or "").splitlines(), ""]:
        depth, text = len(line) - len(line.lstrip()), line.strip()
        if text.startswith(PROMPT) or (is_example and text):
            end_table()
            lines.extend([line] if is_example else ["```pycon", line])
            is_example, inside = True, False
        elif is_example:
            lines.extend(["```", ""])
            is_example = False
        elif SECTION.match(text):
            end_table()
            inside, indent, section = True, depth + 4, text.rstrip(":")
            lines.append("")
        elif inside and text and depth >= indent:
            item, _, meaning = text.partition(": ")
            if depth == indent and re.fullmatch(r"[\w, *]+", item) and (meaning or text[-1] == ":"):
                rows.append([item.rstrip(":"), meaning])
            elif rows:
                rows[-1][1] += f" {text}"
            else:
                lines.append(text)
        elif text or not inside:
            end_table()
            inside = False
            lines.append(line)
    end_table()
    return "\n".join(lines)


def _parameters(value: Any) -> dict[str, tuple[str, str]]:
    """Types and defaults of the arguments, as the source writes them."""
    try:
        found = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):  # written in C, or no function
        return {}
    return {p.name: (_type(p.annotation), _default(p)) for p in found}


def _type(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", text)  # without the modules
    return text.replace(" | ", " or ")


def _default(p: inspect.Parameter) -> str:
    if p.default is p.empty:
        return "required"
    return f"`{_argument(p.replace(annotation=p.empty)).partition('=')[2]}`"


def _table(rows: list[list[str]], columns: dict[str, tuple[str, str]], section: str) -> list[str]:
    """Arguments with type, default and meaning; attributes without a default."""
    has_default = section != "Attributes"
    head = ["argument", "type", "default", "meaning"] if has_default else ["attribute", "type", ""]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for item, meaning in rows:
        names = [name.strip() for name in item.split(",")]
        found = [columns[name] for name in names if name in columns]
        types = dict.fromkeys(f"`{_cell(text)}`" for text, _ in found if text)
        cells = [", ".join(f"`{name}`" for name in names), ", ".join(types)]
        if has_default:
            cells.append(", ".join(dict.fromkeys(default for _, default in found)))
        lines.append("| " + " | ".join([*cells, _cell(meaning)]) + " |")
    return lines
