"""A group of commands that imports a command's module on demand."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


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
