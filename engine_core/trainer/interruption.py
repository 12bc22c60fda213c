"""SIGINT and SIGTERM during a fit: noted at once, acted on between two batches. Knows no loop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from ..callback import saver_folders
from ..state import State

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class EvaluationInterrupted(BaseException):
    """Ends an evaluation that is to be finished later; carries the results of the loaders that are done."""

    def __init__(self, results: dict[str, float]) -> None:
        self.results = results


@contextmanager
def interruptible(state: State) -> Iterator[None]:
    """Let the first SIGINT or SIGTERM set `state.interrupted_by`; a second one acts at once, as usual.

    If no callback saves there is nothing to wait for, and outside the main thread Python allows no handlers.
    """
    if not saver_folders(state.callbacks) or threading.current_thread() is not threading.main_thread():
        yield
        return
    former: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in _SIGNALS}

    def put_back() -> None:
        for number, handler in former.items():
            if handler is not None:  # a handler not installed from Python can't be restored
                signal.signal(number, handler)

    def notice(number: int, _: FrameType | None) -> None:
        state.interrupted_by = number
        put_back()
        with suppress(OSError):
            os.write(2, b"\nengine-core: ending after this batch; signal again to end at once\n")

    for number in _SIGNALS:
        signal.signal(number, notice)
    try:
        yield
    finally:
        put_back()


def raise_if_interrupted(state: State) -> None:
    """Raise KeyboardInterrupt for SIGINT, or SystemExit with 128 + 15 for SIGTERM."""
    if state.interrupted_by == signal.SIGINT:
        raise KeyboardInterrupt
    if state.interrupted_by is not None:
        raise SystemExit(128 + state.interrupted_by)
