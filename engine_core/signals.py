"""SIGINT and SIGTERM, handled for the length of a block."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["SignalGuard"]


class SignalGuard:
    """Within the block, the first SIGINT or SIGTERM calls a function; a second one acts as it would without the block.

    A signal that was ignored stays ignored. Outside the main thread, where Python allows no handlers, nothing changes.

    Args:
        first: gets the number of the signal; or `signal.SIG_DFL`, where Python's handlers can't run.
        numbers: of the signals, if not these two.
    """

    def __init__(self, first: Callable[[int], object] | signal.Handlers, *numbers: signal.Signals) -> None:
        self._first, self._numbers = first, numbers or (signal.SIGINT, signal.SIGTERM)
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            former = {number: signal.getsignal(number) for number in self._numbers}
            # None is a handler that was not installed from Python, and can't be put back.
            self._former = {n: each for n, each in former.items() if each not in (None, signal.SIG_IGN)}
            for number in self._former:
                signal.signal(number, self._first if isinstance(self._first, signal.Handlers) else self._handle)

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        self.__exit__()
        self._first(number)  # type: ignore[operator]  # SIG_DFL and SIG_IGN are not called here
