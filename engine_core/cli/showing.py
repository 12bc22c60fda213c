"""How much of a run `engine-core train` shows, and where: text, JSON lines on stdout, or warnings only."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TextIO

import click

from ..messages import escaped
from .importing import stdout_at_stderr

LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class Showing:
    """What the command line asks for.

    Args:
        level: of `--log-level`; None: not given.
    """

    quiet: bool
    as_json: bool
    level: str | None

    def __post_init__(self) -> None:
        if self.quiet and self.as_json:
            raise click.UsageError("give either --quiet, which leaves stdout empty, or --json, not both")

    @property
    def has_text(self) -> bool:
        """Are the results printed to stdout as text?"""
        return not self.quiet and not self.as_json

    @property
    def has_progress(self) -> bool:
        """Are header, evaluations and progress shown on stderr?"""
        return not self.as_json and (self.level or ("warning" if self.quiet else "info")) in ("debug", "info")

    @contextlib.contextmanager
    def applied(self) -> Iterator[Callable[[str], None] | None]:
        """Keep stdout for what was asked for, and yield what writes a JSON line to it, if that was."""
        with contextlib.ExitStack() as stack:
            if self.level is not None:
                stack.enter_context(_logging_at(self.level))
            if self.level == "error":
                stack.enter_context(warnings.catch_warnings())
                warnings.showwarning = lambda *_, **__: None  # filters stay: one may turn a warning into an error
            if self.has_text:
                yield None
                return
            stdout = stack.enter_context(stdout_at_stderr())
            if self.quiet:
                yield None
                return
            yield lambda line: _write(line, stdout)


def _write(line: str, stdout: TextIO | None) -> None:
    if stdout is not None:
        with contextlib.suppress(OSError):  # its reader is gone, or a disk is full: training matters more
            stdout.write(f"{line}\n")
            stdout.flush()


@contextlib.contextmanager
def _logging_at(level: str) -> Iterator[None]:
    """Show the records of Python's logging on stderr from this level on."""
    root, handler = logging.getLogger(), _Stderr()
    former = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())
    try:
        yield
    finally:
        root.setLevel(former)
        root.removeHandler(handler)


class _Stderr(logging.Handler):
    """Writes records like the command's warnings, `info: my_module: ...`, to what stderr is at that time."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        try:
            text = f"{record.levelname.lower()}: {record.name}: {self.format(record)}"
            click.echo(escaped(text, keep="\n"), err=True)
        except Exception:  # noqa: BLE001  as all handlers do
            self.handleError(record)
