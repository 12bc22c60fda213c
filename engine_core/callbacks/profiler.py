"""Measure where the time of a run goes, as a Chrome trace. Knows spans by name, no engine."""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TextIO

from ..algorithm import Algorithm
from ..callback import Callback
from ..errors import ArgumentError, ArgumentTypeError
from ..event import Event
from ..logger import Logger
from ..state import State

__all__ = ["Profiler", "Span"]

CHUNK = 8192
"""How many complete spans are kept in memory before they are written."""


class Profiler(Callback):
    """Writes how long events, algorithms and callbacks take, for https://ui.perfetto.dev or chrome://tracing.

    The engine adds the spans `event/<canonical_name>`, `algorithm/<name>/<event>` and `callback/<name>/<event>`; add
    your own as `with state.profiler.span("tokenise"):`. They are recorded from INIT until the engine closes.

    Args:
        path: the file, which is overwritten; missing folders are created at INIT.

    Raises:
        ArgumentError: (a ValueError) if no file can be written at `path`.
    """

    every_rank = False

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = _checked(path)
        self._file: TextIO | None = None
        self._lock = threading.Lock()
        self._threads = defaultdict[int, _Thread](lambda: _Thread(threading.get_native_id(), []))
        self._complete: list[tuple[str, int, int, int]] = []
        self._written = 0

    def init(self, state: State, logger: Logger) -> None:
        """Open the file and register with the engine."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("w", encoding="utf-8")
        except OSError as error:
            raise ArgumentError(f"the profiler can't write to {str(self.path)!r}: {error.strerror}") from error
        self._file.write("[")
        self._file.flush()
        self._pid, self._start_ns, self._written = os.getpid(), time.perf_counter_ns(), 0
        state.profiler = self

    def begin(self, span: str) -> None:
        """Open a span that `end` closes; one of this name that an exception left open ends here."""
        self.end(span)
        self._enter(self.span(span))

    def end(self, span: str) -> None:
        """Close the span, and those inside it that were left open; nothing happens if it is not open."""
        spans = self._threads[threading.get_ident()].spans
        for depth in range(len(spans) - 1, -1, -1):
            if spans[depth].name == span:
                self._close_down_to(depth)
                return

    def span(self, name: str) -> Span:
        """Return a context manager that is a span from its entry to its exit."""
        return Span(name, self._enter, self._leave)

    def around_apply(self, algorithm: Algorithm, name: str, event: Event, state: State) -> Span:
        """Return the span of an algorithm at an event."""
        return self.span(f"algorithm/{name}/{event}")

    def close(self, state: State, logger: Logger) -> None:
        """End what is still open and complete the file."""
        if self._file is None:
            return
        now_ns = time.perf_counter_ns()
        for thread in self._threads.values():
            self._complete += [(s.name, s.start_ns, now_ns, thread.native_id) for s in reversed(thread.spans)]
        self._threads.clear()
        self._write()
        self._file.write("\n]\n")
        self._file.close()
        self._file = None
        if state.profiler is self:
            state.profiler = None

    def _enter(self, span: Span) -> None:
        if self._file is not None:
            self._threads[threading.get_ident()].spans.append(span)
            span.start_ns = time.perf_counter_ns()

    def _leave(self, span: Span) -> None:
        spans = self._threads[threading.get_ident()].spans
        if span in spans:
            self._close_down_to(spans.index(span))

    def _close_down_to(self, depth: int) -> None:
        """Complete the innermost spans of this thread, so that `depth` of them stay open."""
        now_ns = time.perf_counter_ns()
        thread = self._threads[threading.get_ident()]
        while len(thread.spans) > depth:
            span = thread.spans.pop()
            self._complete.append((span.name, span.start_ns, now_ns, thread.native_id))
        if len(self._complete) >= CHUNK:
            self._write()

    def _write(self) -> None:
        """Append the complete spans to the file; flushed, so that a forked process inherits an empty buffer."""
        with self._lock:
            complete, self._complete = self._complete, []
            if self._file is not None and complete:
                self._file.write("," * (self._written > 0) + ",".join(map(self._line, complete)))
                self._file.flush()
                self._written += len(complete)

    def _line(self, span: tuple[str, int, int, int]) -> str:
        name, start_ns, end_ns, thread_id = span
        ts, dur = (start_ns - self._start_ns) / 1000, (end_ns - start_ns) / 1000
        return f'{_head(name)}, "ts": {ts:.3f}, "dur": {dur:.3f}, "pid": {self._pid}, "tid": {thread_id}}}'


class Span:
    """A stretch of time of one thread, from its entry to its exit."""

    __slots__ = ("_enter", "_leave", "name", "start_ns")

    def __init__(self, name: str, enter: Callable[[Span], None], leave: Callable[[Span], None]) -> None:
        self.name = name
        self.start_ns = 0
        self._enter, self._leave = enter, leave

    def __enter__(self) -> Span:
        self._enter(self)
        return self

    def __exit__(self, *raised: object) -> None:
        self._leave(self)


class _Thread(NamedTuple):
    native_id: int
    spans: list[Span]


@functools.lru_cache(maxsize=1024)
def _head(name: str) -> str:
    """Return the start of the lines of all spans of one name; cached, as it is half the work of writing them."""
    return f'\n{{"name": {json.dumps(name)}, "cat": {json.dumps(name.partition("/")[0])}, "ph": "X"'


def _checked(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentTypeError(f"the profiler's path is {path!r}; give the name of a file such as 'trace.json'")
    checked = Path(path)
    if checked.is_dir():
        raise ArgumentError(f"the profiler's path {str(path)!r} is a folder; give the name of a file in it")
    there = next(folder for folder in checked.absolute().parents if folder.exists())
    if not there.is_dir() or not os.access(checked if checked.exists() else there, os.W_OK):
        raise ArgumentError(f"the profiler can't write {str(path)!r}: {there} is not a writable folder")
    return checked
