"""Measure where the time of a run goes: each span in a Chrome trace, and their sums. Knows spans by name, no engine."""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from engine_core import Algorithm, Callback, Event, Logger, State
from engine_core.arguments import path_of
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.files import cannot_write
from engine_core.messages import warn

CHUNK = 8192
"""How many complete spans are kept in memory before they are written."""
TIMING_SCHEMA = 1
"""The form of the sums."""
_BATCH = "event/batch"
_HEADS = (b'[\n{"name": ', b"[\n]")
"""How a trace begins."""


class Profiler(Callback):
    """Writes how long events, algorithms and callbacks take: each time, or in sum.

    The engine adds the spans `event/<canonical_name>`, `algorithm/<name>/<event>` and `callback/<name>/<event>`, and
    the Trainer adds `optimizer`; add your own as `with state.profiler.span("tokenise"):`. They are recorded from INIT
    until the engine closes.

    Args:
        path: the file for each span, for https://ui.perfetto.dev or chrome://tracing. It is overwritten, and missing
            folders are created, at INIT. None: only the sums are kept.

    Attributes:
        timing: the sums of a run that trained, once the engine is closed, until then None: `{"schema": 1, "batches": n,
            "resumed_at": n or None, "spans": {name: {"count", "seconds", "own_seconds"}}}`, where `own_seconds` are
            those without the spans inside. They are of this process, and `resumed_at` says after how many batches it
            began.

    Raises:
        ArgumentError: (a ValueError) if no file can be written there.
    """

    every_rank = False

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else _checked(path)
        self.timing: dict[str, Any] | None = None
        self._is_on = self._has_begun = False
        self._file: TextIO | None = None
        self._lock = threading.Lock()
        self._threads = defaultdict[int, _Thread](lambda: _Thread(threading.get_native_id(), [], {}))
        self._complete: list[tuple[str, int, int, int]] = []
        self._written = 0
        self._resumed_at: int | None = None

    def init(self, state: State, logger: Logger) -> None:
        """Open the trace and register with the engine."""
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("w", encoding="utf-8")
                self._file.write("[")
                self._file.flush()
            except OSError as error:
                message = f"the profiler can't write to {str(self.path)!r}: {error.strerror}"
                raise cannot_write(error, message) from error
        self._pid, self._start_ns, self._written = os.getpid(), time.perf_counter_ns(), 0
        self._is_on, self._resumed_at, self.timing = True, None, None
        state.profiler = self

    def fit_start(self, state: State, logger: Logger) -> None:
        """Note that the run begins; one that savers have refused has no sums."""
        self._has_begun = True

    def after_load(self, state: State, logger: Logger) -> None:
        """Note where a resumed run begins; later, it is a part of the run that goes back."""
        if not self._sums().get(_BATCH):
            self._resumed_at = state.timestamp.batch

    def begin(self, span: str) -> None:
        """Open a span that `end` closes; one of this name that an exception left open ends here."""
        self.end(span)
        self._enter(self.span(span))

    def end(self, span: str) -> None:
        """Close the span, and those inside it that were left open; nothing happens if it is not open."""
        thread = self._threads[threading.get_ident()]
        for depth in range(len(thread.spans) - 1, -1, -1):
            if thread.spans[depth].name == span:
                self._close_down_to(depth, thread)
                return

    def span(self, name: str) -> Span:
        """Return a context manager that is a span from its entry to its exit."""
        return Span(name, self._enter, self._leave)

    def around_apply(self, algorithm: Algorithm, name: str, event: Event, state: State) -> Span:
        """Return the span of an algorithm at an event."""
        return self.span(f"algorithm/{name}/{event}")

    def close(self, state: State, logger: Logger) -> None:
        """End what is still open, complete the trace, and add up the spans."""
        if not self._is_on:
            return
        self._is_on = False
        for thread in self._threads.values():
            self._close_down_to(0, thread)
        self._write("\n]\n")
        if self._file is not None:
            with suppress(OSError):  # as in _write
                self._file.close()
            self._file = None
        if state.profiler is self:
            state.profiler = None
        if self._has_begun:
            self.timing = _timing(self._sums(), self._resumed_at)
        self._threads.clear()

    def _sums(self) -> dict[str, list[int]]:
        """Return how many spans there were of each name, their time, and that without the spans inside, in ns."""
        sums: dict[str, list[int]] = {}
        for thread in self._threads.values():
            for name, own in thread.sums.items():
                sums[name] = [a + b for a, b in zip(sums.get(name, (0, 0, 0)), own, strict=True)]
        return sums

    def _enter(self, span: Span) -> None:
        if self._is_on:
            self._threads[threading.get_ident()].spans.append(span)
            span.inside_ns, span.start_ns = 0, time.perf_counter_ns()

    def _leave(self, span: Span) -> None:
        thread = self._threads[threading.get_ident()]
        if span in thread.spans:
            self._close_down_to(thread.spans.index(span), thread)

    def _close_down_to(self, depth: int, thread: _Thread) -> None:
        """Complete the innermost spans of a thread, so that `depth` of them stay open."""
        now_ns = time.perf_counter_ns()
        spans = thread.spans
        while len(spans) > depth:
            span = spans.pop()
            if self._file is not None:
                self._complete.append((span.name, span.start_ns, now_ns, thread.native_id))
            took_ns = now_ns - span.start_ns
            if spans:
                spans[-1].inside_ns += took_ns
            sums = thread.sums.setdefault(span.name, [0, 0, 0])
            sums[0] += 1
            sums[1] += took_ns
            sums[2] += took_ns - span.inside_ns
        if len(self._complete) >= CHUNK:
            self._write()

    def _write(self, end: str = "") -> None:
        """Append the complete spans to the file; flushed, so that a forked process inherits an empty buffer."""
        with self._lock:
            complete, self._complete = self._complete, []
            if self._file is None or not (complete or end):
                return
            try:
                comma = "," if self._written and complete else ""
                self._file.write(comma + ",".join(map(self._line, complete)) + end)
                self._file.flush()
                self._written += len(complete)
            except OSError as error:  # a full disk costs the trace, never the run
                self._file = None
                warn(f"the profiler can't write to {str(self.path)!r} any more: {error}", UserWarning)

    def _line(self, span: tuple[str, int, int, int]) -> str:
        name, start_ns, end_ns, thread_id = span
        ts, dur = (start_ns - self._start_ns) / 1000, (end_ns - start_ns) / 1000
        return f'{_head(name)}, "ts": {ts:.3f}, "dur": {dur:.3f}, "pid": {self._pid}, "tid": {thread_id}}}'


class Span:
    """A stretch of time of one thread, from its entry to its exit."""

    __slots__ = ("_enter", "_leave", "inside_ns", "name", "start_ns")

    def __init__(self, name: str, enter: Callable[[Span], None], leave: Callable[[Span], None]) -> None:
        self.name = name
        self.start_ns = self.inside_ns = 0
        self._enter, self._leave = enter, leave

    def __enter__(self) -> Span:
        self._enter(self)
        return self

    def __exit__(self, *raised: object) -> None:
        self._leave(self)


class _Thread(NamedTuple):
    native_id: int
    spans: list[Span]
    sums: dict[str, list[int]]


@functools.lru_cache(maxsize=1024)
def _head(name: str) -> str:
    """Return the start of the lines of all spans of one name; cached, as it is half the work of writing them."""
    return f'\n{{"name": {json.dumps(name)}, "cat": {json.dumps(name.partition("/")[0])}, "ph": "X"'


def _timing(sums: dict[str, list[int]], resumed_at: int | None) -> dict[str, Any]:
    spans = {
        name: {"count": count, "seconds": ns / 1e9, "own_seconds": own_ns / 1e9}
        for name, (count, ns, own_ns) in sorted(sums.items())
    }
    batches = spans.get(_BATCH, {"count": 0})["count"]
    return {"schema": TIMING_SCHEMA, "batches": batches, "resumed_at": resumed_at, "spans": spans}


def _checked(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentTypeError(f"the profiler's path is {path!r}; give the name of a file such as 'trace.json'")
    checked = path_of(path)
    if checked.is_dir():
        raise ArgumentError(f"the profiler's path {str(path)!r} is a folder; give the name of a file in it")
    if checked.is_file() and not _is_ours(checked):
        raise ArgumentError(
            f"the profiler's path {str(path)!r} is a file that is not a trace, and is left as it is: give another name"
        )
    there = next(folder for folder in checked.absolute().parents if folder.exists())
    if not there.is_dir() or not os.access(checked if checked.exists() else there, os.W_OK):
        raise ArgumentError(f"the profiler can't write {str(path)!r}: {there} is not a writable folder")
    return checked


def _is_ours(file: Path) -> bool:
    """Does a file begin as a trace does, or is it empty?"""
    with suppress(OSError), file.open("rb") as opened:
        begin = opened.read(64)
        return any(begin[: len(head)] == head[: len(begin)] for head in _HEADS)
    return False
