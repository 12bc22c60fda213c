"""The command `engine-core`: thin commands over documented functions. Starts without torch and without any plugin."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import click

from ..errors import EngineError, UnwritableError
from ..messages import escaped
from ..registry import CORE, Registry
from .ending import NOT_WHOLE, has_last_lines, in_words, is_first_here, is_told_elsewhere, say_last_lines
from .lazy import LazyGroup

__all__ = ["main"]


class _Refused(click.ClickException):
    """The request can't be carried out; shown as one message."""

    exit_code = 2


class _Main(LazyGroup):
    """Says what went wrong without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run; an error of the engine's own becomes one message, Ctrl-C exit code 130, a crash stays a crash.

        Of several processes on a machine the first one prints it, since mostly all have the same.
        """
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning  # type: ignore[assignment]
                return super().invoke(ctx)
        except (EngineError, click.UsageError) as error:
            if not is_first_here() and is_told_elsewhere(error):
                ctx.exit(_Refused.exit_code)
            if not isinstance(error, EngineError):
                raise
            _Refused("\n".join([in_words(error), *getattr(error, "__notes__", ())])).show()
            say_last_lines(ctx)
            ctx.exit(NOT_WHOLE if isinstance(error, UnwritableError) else _Refused.exit_code)
        except KeyboardInterrupt as interruption:
            if not has_last_lines(ctx):
                click.echo("\n".join(["interrupted", *getattr(interruption, "__notes__", ())]), err=True)
            say_last_lines(ctx)
            ctx.exit(130)
        except SystemExit:
            say_last_lines(ctx)
            raise
        except Exception as crash:
            if not has_last_lines(ctx):
                raise
            sys.excepthook(*sys.exc_info())  # not by leaving, which would put it after the last lines
            if not hasattr(crash, "add_note") and hasattr(crash, "__notes__"):  # Python 3.10 does not show them
                click.echo("\n".join(crash.__notes__), err=True)
            say_last_lines(ctx)
            ctx.exit(1)


def _show_warning(message: object, _: object, filename: str, lineno: int, *__: object) -> None:
    """Show a warning without a line, as none is the user's, unless it is in a config."""
    place = f"{filename}:{lineno}: " if filename.endswith((".yaml", ".yml")) else ""
    click.echo(escaped(f"warning: {place}{message}", keep="\n"), err=True)


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"{CORE} {Registry.scan().version_of(CORE)}")
        ctx.exit()


@click.group(
    cls=_Main,
    commands_in={
        "train": "train:train",
        "eval": "eval:evaluate",
        "explain": "explain:explain",
        "diff": "diff:diff",
        "runs": "runs:runs",
        "report": "report:report",
        "watch": "watch:watch",
        "checkpoint": "checkpoint:checkpoint",
        "plugins": "plugins:plugins",
    },
    epilog="\b\nExample:\n  engine-core train --example digits",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
def main() -> None:
    """Train PyTorch models with algorithms that are plugins."""
