"""Commands whose help names no type for options that take no value, and that take no NaN."""

import inspect
import math
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

__all__ = ["App", "Command"]

Function = TypeVar("Function", bound=Callable[..., Any])


class Command(TyperCommand):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        if self.help:  # the source's lines are not those of the terminal
            paragraphs = inspect.cleandoc(self.help).split("\n\n")
            self.help = "\n\n".join(" ".join(lines.split("\n")) for lines in paragraphs)
        super().format_help(ctx, formatter)

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        for parameter in self.get_params(ctx):
            value = ctx.params.get(parameter.name)
            for one in value if isinstance(value, list | tuple) else (value,):
                if isinstance(one, float) and math.isnan(one):  # which is within all bounds
                    raise typer.BadParameter("nan is no number.", ctx, parameter)
        return rest


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))


def _without_types(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""  # else "--json <bool>", which reads as if one had to be given
    return parameters


class App(typer.Typer):
    """An application, or a group of commands of one."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_Group, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        return super().command(name, **{"cls": Command, **settings})
