"""Types of the values of options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import bayeslearn as bl

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

AUTO = "auto"


class Method(click.ParamType):
    """A name in `bl.ALGORITHMS`, or "auto"; imported where needed, for it costs a second."""

    name = "method"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Names that begin like this."""
        from click.shell_completion import CompletionItem

        names = (AUTO, *bl.ALGORITHMS)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class Sizes(click.ParamType):
    """Sizes of hidden layers: 50, or 50,50, none or auto."""

    name = "sizes"

    def convert(
        self,
        value: str | tuple[int, ...],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | tuple[int, ...]:
        """Text as a tuple."""
        if isinstance(value, tuple) or value.lower() == AUTO:
            return value
        if value.lower() == "none":
            return ()
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not like 50, 50,50, none or auto.", param, ctx)


class NumberOr(click.ParamType):
    """A number, or one of some words."""

    name = "number"

    def __init__(self, kind: type[int] | type[float], *words: str):
        self.kind, self.words = kind, words

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | float:
        """Text as a number, if it is none of the words."""
        if value in self.words or not isinstance(value, str):
            return value
        try:
            return self.kind(value)
        except ValueError:
            kind = "whole number" if self.kind is int else "number"
            self.fail(f"{value!r} is not a {kind} or {', '.join(self.words)}.", param, ctx)


class Every(click.ParamType):
    """A number of steps, or a time; see `bl.Checkpoint`."""

    name = "steps or time"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | int:
        """Digits as a number."""
        return int(value) if isinstance(value, str) and value.isdigit() else value
