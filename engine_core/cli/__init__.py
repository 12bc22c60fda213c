"""The command `engine-core`: thin commands over documented functions. Starts without torch and without any plugin."""

from __future__ import annotations

import importlib
from typing import Any

import click

from ..errors import EngineError
from ..registry import CORE, Registry

__all__ = ["main"]

_COMMANDS = ("train", "explain", "plugins")
"""Each is the name of a module here, of the command in it, and of the command that users type."""


class _Refused(click.ClickException):
    """What was asked for can't be done; shown in one message."""

    exit_code = 2


class _Lazy(click.Group):
    """Imports a command's module when the command is asked for, and says what went wrong without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by name."""
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f".{cmd_name}", __name__), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run; an error of the engine's own becomes one message, Ctrl-C exit code 130, a crash stays a crash."""
        try:
            return super().invoke(ctx)
        except EngineError as error:
            raise _Refused("\n".join([str(error), *getattr(error, "__notes__", ())])) from error
        except KeyboardInterrupt as interruption:
            click.echo("\n".join(["interrupted", *getattr(interruption, "__notes__", ())]), err=True)
            ctx.exit(130)
        except Exception as crash:
            if not hasattr(crash, "add_note") and hasattr(crash, "__notes__"):  # Python 3.10 does not show them
                click.echo("\n".join(crash.__notes__), err=True)
            raise


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"{CORE} {Registry.scan().version_of(CORE)}")
        ctx.exit()


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
def main() -> None:
    """Train PyTorch models with algorithms that are plugins."""
