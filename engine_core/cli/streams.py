"""What a command writes where: text or JSON lines on stdout, the rest on stderr; and where it looks for modules."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import click

from ..messages import escaped

LEVELS = ("debug", "info", "warning", "error")
STDOUT, STDERR = 1, 2


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


@dataclass(frozen=True)
class Showing:
    """How much of a run the command line asks for; `level` is that of `--log-level`, None if not given."""

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
            stdout = None if self.has_text else stack.enter_context(stdout_at_stderr())
            yield (lambda line: _write(line, stdout)) if self.as_json else None


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
