"""What commands share: groups, paths, streams, the order to explain, which process speaks, and exit codes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

import click

from ..arguments import path_of
from ..errors import ArgumentError, EngineError, PluginError, RankError, UnwritableError, did_you_mean
from ..event import Event
from ..messages import escaped
from ..registry import Registry, brought_by

if TYPE_CHECKING:
    from ..explain import Explanation

T = TypeVar("T")
STDOUT, STDERR = 1, 2

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


def explained(command: Callable[..., T]) -> Callable[..., T]:
    """Add to a command the arguments that say which order it is about, as `explaining` takes them, and the event."""
    for add in (
        click.option("--event", metavar="EVENT", callback=_event, help="Show this event only."),
        click.option(
            "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a value of the CONFIG, as in train."
        ),
        click.option(
            "--algorithms", "by_name", is_flag=True, help="Explain installed algorithms by name, in this order."
        ),
        click.argument(
            "what", nargs=-1, required=True, type=click.Path(), metavar="CONFIG | RUN | --algorithms NAME..."
        ),
    ):
        command = add(command)
    return command


def _event(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    try:
        return None if name is None else Event(name).value
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@contextlib.contextmanager
def explaining(
    what: Sequence[str], by_name: bool, overrides: Sequence[str], loop: str | None = None
) -> Iterator[Explanation]:
    """Find out the order of a config, of a run, or of installed algorithms; after the block, say what is wrong with it.

    Raises:
        ArgumentError: (a ValueError) after the block, if the algorithms can't run together, or not in the loop.
    """
    with stdout_at_stderr():
        explanation = _find_out(what, by_name, overrides, loop)
    yield explanation
    for warning in explanation.warnings:
        click.echo(escaped(f"warning: {warning}", keep="\n"), err=True)
    if explanation.problems:
        lines = [f"- {problem}".replace("\n", "\n  ") for problem in explanation.problems]
        head = f"this can't run in {loop}:" if loop else "these algorithms can't run together:"
        raise ArgumentError("\n".join([head, *lines]))


def _find_out(what: Sequence[str], by_name: bool, overrides: Sequence[str], loop: str | None) -> Explanation:
    from ..config import load_config  # noqa: PLC0415  other commands don't need them
    from ..explain import explain_config, explain_installed  # noqa: PLC0415
    from ..manifest import is_run, read_manifest  # noqa: PLC0415

    if overrides and (by_name or is_run(path_of(what[0]))):
        raise click.UsageError("--set changes a CONFIG; give one, or leave it out")
    if by_name:
        if what[0].endswith((".yaml", ".yml")):
            raise click.UsageError("give either a CONFIG or --algorithms NAME..., not both")
        return explain_installed(what, loop)
    if len(what) > 1:
        raise click.UsageError(f"give one CONFIG, or --algorithms before names: --algorithms {' '.join(what)}")
    path = path_of(what[0])
    if is_run(path):
        if loop is not None:
            raise click.UsageError("--loop takes a CONFIG or --algorithms: a run does not record what it needs")
        return read_manifest(path).explanation()
    import_beside(path)
    return explain_config(load_config(path, overrides), loop)


def import_beside(config: Path) -> None:
    """Put the config's folder, then the current one, first on the path, as for a script's imports."""
    for folder in (str(Path.cwd()), str(config.resolve().parent)):
        if folder in sys.path:
            sys.path.remove(folder)
        sys.path.insert(0, folder)


@contextlib.contextmanager
def stdout_at_stderr() -> Iterator[TextIO | None]:
    """Send to stderr what Python, C code and child processes print, so that stdout holds only the result.

    Yields what still writes to stdout, if there is one.
    """
    with contextlib.ExitStack() as stack:
        _flush()
        stdout: TextIO | None = sys.stdout
        with contextlib.suppress(OSError):  # the process may have been started without stdout or stderr
            saved = os.dup(STDOUT)
            stack.callback(os.close, saved)
            if stdout is not None and _descriptor_of(stdout) == STDOUT:
                stdout = os.fdopen(os.dup(saved), "w", encoding="utf-8")
                stack.callback(_close, stdout)
            os.dup2(STDERR, STDOUT)
            stack.callback(os.dup2, saved, STDOUT)
        stack.callback(_flush)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield stdout


def _close(stream: TextIO) -> None:
    with contextlib.suppress(OSError):  # what a reader that is gone did not take
        stream.close()


def _descriptor_of(stream: TextIO) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return stream.fileno()
    return None


def _flush() -> None:
    """Flush Python's and C's buffers for stdout, before it goes elsewhere."""
    for stream in (sys.stdout, sys.__stdout__):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    with contextlib.suppress(OSError, TypeError, AttributeError):  # Windows has no such handle
        ctypes.CDLL(None).fflush(None)
