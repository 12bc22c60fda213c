"""What commands are made of: groups that import a command's module on demand, and paths."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ..arguments import path_of
from ..errors import did_you_mean


class LazyGroup(click.Group):
    """A group whose commands are in modules of this package, each given as `module:attribute`."""

    def __init__(self, *args: Any, commands_in: Mapping[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self._commands_in = commands_in

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(self._commands_in)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by name."""
        if cmd_name not in self._commands_in:
            return None
        module, _, attribute = self._commands_in[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(f".{module}", __package__), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first word names; an unknown one is refused with the nearest name."""
        if args[0] not in self._commands_in and not ctx.resilient_parsing:
            ctx.fail(f"there is no command {args[0]!r}{did_you_mean(args[0], self._commands_in)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with the whole first sentence of each: click cuts it to one line."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, c.get_short_help_str(limit=sys.maxsize)) for name, c in commands if c])


class GivenPath(click.Path):
    """A path, in which a leading `~` is the home folder: shells leave it alone in `--out=~/run` and in quotes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path."""
        return path_of(super().convert(value, param, ctx))  # type: ignore[arg-type]
