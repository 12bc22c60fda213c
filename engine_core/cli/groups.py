"""What commands share: groups, paths, which of several processes speaks, and exit codes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, cast

import click

from ..arguments import path_of
from ..errors import EngineError, PluginError, RankError, UnwritableError, did_you_mean
from ..registry import Registry, brought_by

NOT_WHOLE, PAUSED = 74, 75
"""EX_IOERR and EX_TEMPFAIL of sysexits.h: something could not be written; try again later."""


class CommandGroup(click.Group):
    """A group with its own commands and those that distributions register in `engine_core.commands`.

    Args:
        within: what the entry points' names begin with before the name of a command, as `plugins.`.
    """

    def __init__(self, *args: Any, within: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self._within = within

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands that are not disabled; nothing is imported."""
        usable = [record.name for record in Registry.scan().records_of("commands") if record.status != "disabled"]
        return sorted({*self.commands, *filter(None, map(self._name_here, usable))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; raise PluginError if it is registered and can't be used."""
        registry, name = Registry.scan(), self._within + cmd_name
        if cmd_name in self.commands or not registry.records_of("commands", name):
            return self.commands.get(cmd_name)
        return cast("click.Command", registry.load("commands", name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first word names; an unknown one is refused with the way to it."""
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            way = brought_by("commands", self._within + args[0]) or did_you_mean(args[0], self.list_commands(ctx))
            ctx.fail(f"there is no command {args[0]!r} here{way}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with the whole first sentence of each, or with why it can't be used."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._help_of(ctx, name)) for name in self.list_commands(ctx)])

    def _help_of(self, ctx: click.Context, name: str) -> str:
        try:
            command = self.get_command(ctx, name)
        except PluginError as error:
            return str(error)
        assert command is not None
        return command.get_short_help_str(limit=sys.maxsize)  # click would cut it to one line

    def _name_here(self, name: str) -> str:
        """Return the name within this group of a registered command, or nothing if it belongs to another."""
        here = name.removeprefix(self._within)
        return here if name.startswith(self._within) and "." not in here else ""


class GivenPath(click.Path):
    """A path, in which a leading `~` is the home folder: shells leave it alone in `--out=~/run` and in quotes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path."""
        return path_of(super().convert(value, param, ctx))  # type: ignore[arg-type]


WEIGHTS = click.option(
    "--weights",
    type=click.Choice(["evaluated", "trained"]),
    default="evaluated",
    help="Those that evaluations used, which are an average if an algorithm kept one; or those that were trained.",
)

LAST_LINES = "engine_core.last_lines"
"""Where `context.meta` holds what is printed after the error that ended a run."""


def is_first() -> bool:
    """Is this rank 0, which prints and writes for all?"""
    return os.environ.get("RANK", "0") == "0"


def is_first_here() -> bool:
    """Is this the first of the run's processes on this machine?"""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def is_told_elsewhere(error: Exception) -> bool:
    """Is an error that ends this process shown although it does not print it?

    The first process prints its own error, which mostly is the same, or that it ends because of this one. What this
    one alone has before the processes know of each other is in torchrun's summary: it is written down for that here.
    """
    if isinstance(error, RankError):  # a rank that is gone can't tell, and the first one may be that rank
        return " failed: " in str(error)
    if (file := os.environ.get("TORCHELASTIC_ERROR_FILE")) is None:
        return False
    if not Path(file).exists():
        from ..parallel import record  # noqa: PLC0415  it needs torch

        record(error)
    return True


def code_of(error: BaseException) -> int:
    """Return the exit code that an exception leads to."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, UnwritableError):
        return NOT_WHOLE
    if isinstance(error, KeyboardInterrupt):
        return 130
    return 2 if isinstance(error, (EngineError, click.ClickException)) else 1
