"""The settings of a method as options of the command line: `--learning-rate 0.01`."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import click

import bayeslearn as bl
from bayeslearn.cli.flags import AUTO, DEFAULT_METHOD
from bayeslearn.errors import did_you_mean, refuse

Field = dict[str, Any]  # of `bl.algorithms.hyper_parameters`: default, doc, check
BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class WithSettings(click.Command):
    """A command that takes the settings of its `--method` as options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the settings out of the arguments, into `ctx.meta["settings"]`."""
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        known = {name for p in self.get_params(ctx) for name in (*p.opts, *p.secondary_opts)}
        rest, given = split_settings(args, known)
        ctx.meta["settings"] = {}
        if given:
            method = DEFAULT_METHOD
            for here, after in zip(rest, [*rest, ""][1:], strict=True):
                if here.partition("=")[0] == "--method":
                    method = here.partition("=")[2] or after
            ctx.meta["settings"] = parse_settings(ctx, method, given, known)
        return super().parse_args(ctx, rest)


def split_settings(args: list[str], known: set[str]) -> tuple[list[str], dict[str, str]]:
    """Arguments of the command itself, and the text of all other options."""
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
    return rest, given


def parse_settings(
    ctx: click.Context, method: str, given: dict[str, str], known: set[str]
) -> dict[str, Any]:
    """Values of the method's fields."""
    if method == AUTO:
        names = ", ".join(given)
        hint = did_you_mean(next(iter(given)), known, cutoff=0.8)
        hint = hint or "Choose a method with --method."
        raise click.UsageError(f"`{names}` is not an option of --method auto. {hint}", ctx)
    fields = bl.algorithms.hyper_parameters(algorithm_class(method))
    flags = {"--" + name.replace("_", "-"): name for name in fields}
    values = {}
    for flag, text in given.items():
        if flag not in flags:
            hint = did_you_mean(flag, [*flags, *known])
            raise click.UsageError(
                f"`{flag}` is neither an option nor a setting of {method} ({', '.join(flags)})."
                f" {hint}".rstrip(),
                ctx,
            )
        if not text:
            raise click.UsageError(f"`{flag}` needs a value.", ctx)
        values[flags[flag]] = parse_value(flag, text, fields[flags[flag]])
    return values


def parse_value(flag: str, text: str, field: Field) -> object:
    """Text as a field's value; the algorithm itself checks it further."""
    default, check = field["default"], field["check"]
    if check["optional"] and text.lower() == "none":
        return None
    if check["free"]:
        with contextlib.suppress(ValueError):
            return json.loads(text)
        return text
    if isinstance(default, bool):
        if text.lower() not in BOOLEANS:
            refuse(flag, text, "be true or false")
        return BOOLEANS[text.lower()]
    if isinstance(default, str):
        return text
    is_real = isinstance(default, float) or check["real"]
    try:
        return float(text) if is_real else int(text)
    except ValueError:
        refuse(flag, text, "be a number" if is_real else "be a whole number")


def algorithm_class(method: str) -> type[bl.Algorithm]:
    """The class of a method's name."""
    if method not in bl.ALGORITHMS:
        names = (AUTO, *bl.ALGORITHMS)
        refuse("method", method, "be one of " + ", ".join(names), did_you_mean(method, names))
    return bl.ALGORITHMS[method]


def allowed_values(field: Field) -> str:
    """Choices or bounds of a field."""
    check, default = field["check"], field["default"]
    if check["choices"] is not None:
        return ", ".join(check["choices"])
    if isinstance(default, bool):
        return "true, false"
    signs = {"above": ">", "least": ">=", "below": "<", "most": "<="}
    bounds = [f"{sign} {check[name]:g}" for name, sign in signs.items() if check[name] is not None]
    return ", ".join([*bounds, *(["none"] if check["optional"] else [])])
