"""The command `engine-core`: thin commands over documented functions. Starts without torch and without any plugin."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import click

from ..errors import EngineError, RankError
from ..messages import escaped
from ..registry import CORE
from .groups import (
    LAST_LINES,
    CommandGroup,
    GivenPath,
    code_of,
    explained,
    explaining,
    import_beside,
    is_first,
    is_first_here,
    is_told_elsewhere,
)
from .plugins import format_table, warn_of_doubts

__all__ = ["GivenPath", "explained", "explaining", "format_table", "import_beside", "main", "warn_of_doubts"]


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
        rank = "" if is_first() or isinstance(error, RankError) else f"rank {os.environ['RANK']}: "
        click.ClickException("\n".join([f"{rank}{error}", *notes])).show()
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


@click.group(
    cls=_Main,
    epilog="\b\nExample:\n  engine-core train --example digits",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name=CORE, message="%(package)s %(version)s", help="Show the version.")
def main() -> None:
    """Train PyTorch models with algorithms that are plugins."""
