"""The command `engine-core`: thin commands over documented functions. Starts without torch and without any plugin."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import click

from ..errors import EngineError
from ..messages import escaped
from ..registry import CORE, Registry
from .ending import LAST_LINES, code_of, in_words, is_first_here, is_told_elsewhere
from .groups import CommandGroup, GivenPath

__all__ = ["GivenPath", "main"]


class _Main(CommandGroup):
    """Says what went wrong without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run; an error of the engine's own becomes one message, Ctrl-C exit code 130, a crash stays a crash.

        Of several processes on a machine the first one prints it, since mostly all have the same.
        """
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning  # type: ignore[assignment]
                return super().invoke(ctx)
        except BaseException as error:
            lines = ctx.meta.get(LAST_LINES, ())
            is_refusal = isinstance(error, (EngineError, click.UsageError))
            if is_refusal and not is_first_here() and is_told_elsewhere(error):  # type: ignore[arg-type]
                ctx.exit(2)
            if not _show(error, has_more=bool(lines)):
                raise
            for line in lines:
                click.echo(line)
            ctx.exit(code_of(error))


def _show(error: BaseException, *, has_more: bool) -> bool:
    """Print what went wrong, if lines follow or a message is enough; return whether that was done."""
    notes = [*getattr(error, "__notes__", ())]
    if isinstance(error, EngineError):
        click.ClickException("\n".join([in_words(error), *notes])).show()
    elif isinstance(error, KeyboardInterrupt):
        if not has_more:
            click.echo("\n".join(["interrupted", *notes]), err=True)
    elif not isinstance(error, SystemExit):
        if not has_more or isinstance(error, click.UsageError):
            return False
        sys.excepthook(*sys.exc_info())  # not by leaving, which would put it after the last lines
        if notes and not hasattr(error, "add_note"):  # Python 3.10 does not show them
            click.echo("\n".join(notes), err=True)
    return True


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
    epilog="\b\nExample:\n  engine-core train --example digits",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
def main() -> None:
    """Train PyTorch models with algorithms that are plugins."""
