"""Import for a command: where to look for modules, and where plugins' output goes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

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
