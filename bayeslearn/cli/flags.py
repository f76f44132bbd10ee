"""Options of the command line: those that several commands share, and the settings of a method."""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Callable
from typing import Any

import click

import bayeslearn as bl
from bayeslearn.errors import refuse
from bayeslearn.tabular import encoding

DEFAULT_METHOD = "bayes-by-backprop"  # of the estimators


def _chain(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


common = _chain(
    click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output."),
    click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors."),
    click.option(
        "--debug", is_flag=True, expose_value=False, help="Show where an error came from."
    ),
)
cached = click.option(
    "--no-cache", is_flag=True, help="Compile everything anew; see the documentation on the cache."
)
overwriting = click.option("--overwrite", is_flag=True, help="Replace an earlier result.")


class Method(click.ParamType):
    """A name in `bl.ALGORITHMS`; imported where needed, for it costs a second."""

    name = "method"

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in bl.ALGORITHMS if name.startswith(incomplete)]


of_table = _chain(
    click.option("--target", required=True, metavar="COLUMN", help="The column to predict."),
    click.option(
        "--task",
        type=click.Choice(["auto", *encoding.TASKS]),
        default="auto",
        help="What the target is; auto: read off its values, and said.",
    ),
    click.option("--drop", multiple=True, metavar="COLUMN", help="Leave a column out; repeatable."),
    click.option(
        "--categorical",
        multiple=True,
        metavar="COLUMN",
        help="Take a column as categories whatever it looks like; repeatable.",
    ),
    click.option(
        "--categories",
        type=click.Choice(encoding.ENCODINGS),
        default="one-hot",
        show_default=True,
        help="How categories become numbers.",
    ),
    click.option(
        "--impute",
        is_flag=True,
        help="Fill missing values in: the median, or the most frequent category.",
    ),
    click.option(
        "--encoding",
        default="utf-8",
        show_default=True,
        help="Of a text file: latin-1, utf-16, ...",
    ),
)


class Sizes(click.ParamType):
    """Sizes of hidden layers: 50, or 50,50, or none."""

    name = "sizes"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        if value.lower() == "none":
            return ()
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not like 50, 50,50 or none.", param, ctx)


class NumberOr(click.ParamType):
    """A number, or one of some words."""

    name = "number"

    def __init__(self, kind: type, *words: str):
        self.kind, self.words = kind, words

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value in self.words or not isinstance(value, str):
            return value
        try:
            return self.kind(value)
        except ValueError:
            kind = "whole number" if self.kind is int else "number"
            self.fail(f"{value!r} is not a {kind} or {', '.join(self.words)}.", param, ctx)


class Every(click.ParamType):
    """A number of steps, or a time; see `bl.fit`."""

    name = "steps or time"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return int(value) if isinstance(value, str) and value.isdigit() else value


of_network = _chain(
    click.option("--hidden", type=Sizes(), help="Sizes of the hidden layers.  [default: 50]"),
    click.option("--activation", help="A name from jax.nn.  [default: tanh]"),
    click.option("--prior-scale", type=float, help="Standard deviation of the weights in advance."),
    click.option(
        "--observation-noise",
        type=NumberOr(float, "learned", "heteroscedastic"),
        help="Regression: learned, heteroscedastic, or its standard deviation.",
    ),
    click.option("--num-steps", type=NumberOr(int, "auto"), help="Steps.  [default: auto]"),
    click.option("--batch-size", type=NumberOr(int, "auto"), help="Rows a step.  [default: auto]"),
    click.option(
        "--validation-fraction", type=float, help="Of the training rows, to decide when to stop."
    ),
)
over_processes = _chain(
    click.option(
        "--distributed",
        is_flag=True,
        help="One of several processes of this run: found by Slurm, Kubernetes, MPI or as below.",
    ),
    click.option("--processes", type=click.IntRange(min=1), help="How many there are."),
    click.option("--process-id", type=click.IntRange(min=0), help="Which this is, from 0."),
    click.option("--coordinator", metavar="HOST:PORT", help="Where the first listens."),
)


def joined(
    is_asked: bool, coordinator: str | None, processes: int | None, process_id: int | None
) -> bool:
    """Whether this process is the first, once it has joined the others; before JAX is used."""
    if not is_asked:
        for name, value in (("processes", processes), ("process-id", process_id)):
            if value is not None:
                refuse(name, value, "stand beside --distributed")
        return True
    bl.distributed.initialize(coordinator, processes, process_id)
    return bl.distributed.is_first()


seeded = click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True)


class WithSettings(click.Command):
    """Takes the settings of the chosen method as options: `--learning-rate 0.01`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        known = {name for p in self.get_params(ctx) for name in (*p.opts, *p.secondary_opts)}
        rest, given, waiting = [], {}, list(args)
        while waiting:
            arg = waiting.pop(0)
            name, equals, value = arg.partition("=")
            if arg == "--" or not arg.startswith("--") or name in known:
                rest.append(arg)
                continue
            if not equals:
                value = waiting.pop(0) if waiting and not waiting[0].startswith("--") else ""
            given[name] = value
        ctx.meta["settings"] = {}
        if given:
            method = DEFAULT_METHOD
            for here, after in zip(rest, [*rest[1:], ""], strict=True):
                if here.partition("=")[0] == "--method":
                    method = here.partition("=")[2] or after
            ctx.meta["settings"] = _settings(ctx, method, given, known)
        return super().parse_args(ctx, rest)


def _settings(
    ctx: click.Context, method: str, given: dict[str, str], known: set[str]
) -> dict[str, Any]:
    """Values of the method's fields."""
    fields = bl.algorithms.hyper_parameters(class_of(method))
    flags = {"--" + name.replace("_", "-"): name for name in fields}
    made = {}
    for flag, text in given.items():
        if flag not in flags:
            near = difflib.get_close_matches(flag, [*flags, *known], 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            told = ", ".join(flags)
            raise click.UsageError(
                f"`{flag}` is neither an option nor a setting of {method} ({told}).{hint}", ctx
            )
        if not text:
            raise click.UsageError(f"`{flag}` needs a value.", ctx)
        made[flags[flag]] = _value(flag, text, fields[flags[flag]])
    return made


def _value(flag: str, text: str, field: dict[str, Any]) -> Any:
    """Text as a field's value; the algorithm itself checks it further."""
    default, check = field["default"], field["check"]
    if check["optional"] and text.lower() == "none":
        return None
    if check["free"]:
        with contextlib.suppress(ValueError):
            return json.loads(text)
        return text
    if isinstance(default, bool):
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        return (
            words[text.lower()] if text.lower() in words else refuse(flag, text, "be true or false")
        )
    if isinstance(default, str):
        return text
    is_real = isinstance(default, float) or check["real"]
    try:
        return float(text) if is_real else int(text)
    except ValueError:
        refuse(flag, text, "be a number" if is_real else "be a whole number")


def class_of(method: str) -> type[bl.Algorithm]:
    if method not in bl.ALGORITHMS:
        refuse("method", method, "be one of " + ", ".join(bl.ALGORITHMS))
    return bl.ALGORITHMS[method]


def allowed(field: dict[str, Any]) -> str:
    check, default = field["check"], field["default"]
    if check["choices"] is not None:
        return ", ".join(check["choices"])
    if isinstance(default, bool):
        return "true, false"
    signs = {"above": ">", "least": ">=", "below": "<", "most": "<="}
    bounds = [f"{sign} {check[name]:g}" for name, sign in signs.items() if check[name] is not None]
    return ", ".join([*bounds, *(["none"] if check["optional"] else [])])
