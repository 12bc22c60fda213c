"""Run a third-party program that may hang, print endlessly, or start others. Knows nothing about plugins."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO, NamedTuple

KEPT = 64 * 1024
"""How many bytes of what a process prints are kept; the rest is read and forgotten."""


class Ended(NamedTuple):
    """How a process ended: its exit code (that of a signal is negative), or None if its time was over."""

    code: int | None
    stdout: str
    stderr: str


class Processes:
    """The processes that run right now, so that all of them can be ended at once."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, command: Sequence[str], limit_s: float) -> Ended:
        """Run a command without input until it ends or its time is over; what it has started ends with it."""
        with self._lock:
            process = subprocess.Popen(  # noqa: S603  the command is ours, what it imports the user has installed
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._running.add(process)
            if self._stopped:
                _kill(process)
        readers = [_Reader(process.stdout), _Reader(process.stderr)]
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(limit_s)
        _kill(process)
        process.wait()
        with self._lock:
            self._running.discard(process)
        stdout, stderr = (reader.text() for reader in readers)
        return Ended(code, stdout, stderr)

    def stop(self) -> None:
        """End all processes, and at once those that are started from now on."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _kill(process)


class _Reader(threading.Thread):
    """Reads a pipe until its end, so that no writer has to wait."""

    def __init__(self, pipe: IO[bytes] | None) -> None:
        super().__init__(daemon=True)
        assert pipe is not None
        self._pipe, self._kept = pipe, b""
        self.start()

    def text(self) -> str:
        """Return what was kept, without waiting for a process that escaped and may hold the pipe open."""
        self.join(timeout=1)
        return self._kept.decode(errors="replace")

    def run(self) -> None:
        """Read on even when enough is kept."""
        with self._pipe:
            while chunk := os.read(self._pipe.fileno(), KEPT):
                self._kept += chunk[: KEPT - len(self._kept)]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it has started."""
    if sys.platform == "win32":
        subprocess.run(["taskkill", "/F", "/T", "/PID", str(process.pid)], capture_output=True, check=False)  # noqa: S603, S607
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing is left; macOS raises the second
        os.killpg(process.pid, signal.SIGKILL)
