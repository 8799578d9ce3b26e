"""Options that every verb takes. They may stand before the verb or after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from .output import Output

__all__ = ["Options", "common_options", "take_seconds"]

F = TypeVar("F", bound=Callable[..., Any])


class Options:
    """What was said on the command line, wherever it stood."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.config: str | None = None
        self.no_input = False
        """Nobody is asked anything."""


def take_seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """The value of an option that is a time: ``30``, ``1.5``, ``30s``, ``2m``."""
    if value is None:
        return None
    from moorings.config import duration

    try:
        seconds = duration(value)
    except ValueError as fault:
        raise click.BadParameter(
            f"{value!r}: {fault}; write seconds (1.5) or 30s, 2m, 1h30m", ctx, param
        ) from None
    if seconds == 0:
        raise click.BadParameter(f"{value!r} leaves no time at all; write more than 0", ctx, param)
    return seconds


def common_options(verb: F) -> F:
    """Give a verb, or the group, the options that all take."""
    verb = click.option(
        "--config",
        "-c",
        metavar="FILE",
        expose_value=False,
        callback=_take_config,
        help="Configuration file, TOML or JSON.",
    )(verb)
    verb = click.option(
        "--no-input",
        is_flag=True,
        expose_value=False,
        callback=_take_no_input,
        help="Ask nobody anything, and open no browser.",
    )(verb)
    return click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_take_json,
        help="Print one JSON document, on errors too.",
    )(verb)


def _take_config(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    options = ctx.find_object(Options)
    assert options is not None
    if options.config is not None and options.config != value:
        raise click.UsageError("--config is given twice, with different files", ctx)
    options.config = value


def _take_no_input(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    options = ctx.find_object(Options)
    if value and options is not None:
        options.no_input = True


def _take_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    options = ctx.find_object(Options)
    if value and options is not None:
        options.output.as_json = True
