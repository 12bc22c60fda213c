"""SIGINT and SIGTERM during a fit: noted at once, acted on between two batches. Knows no loop."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from ..callback import saver_folders
from ..embed import BegunEvaluation
from ..parallel import ends_with
from ..state import State
from .step_sync import StepSync

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_BETWEEN_BATCHES = "is_between_batches"


P = ParamSpec("P")
T = TypeVar("T")


class EvaluationInterrupted(BaseException):
    """Ends an evaluation that is to be finished later; carries how far it is."""

    def __init__(self, begun: BegunEvaluation) -> None:
        self.begun = begun


class Handlers:
    """Those of SIGINT and SIGTERM, as they are when this is made; of several ranks each has its own.

    If neither a callback nor the run's folder keeps the run there is nothing to wait for, and outside the main thread
    Python allows no handlers.
    """

    def __init__(self, state: State, together: StepSync | None = None) -> None:
        self._state, self._together = state, together
        keeps = bool(state.folder or saver_folders(state.callbacks))
        waits = keeps and threading.current_thread() is threading.main_thread()
        self._former: dict[signal.Signals, Any] = {n: signal.getsignal(n) for n in _SIGNALS} if waits else {}

    def replace(self) -> None:
        """Let the first signal set `state.interrupted_by`; a second one acts at once, as usual."""
        for number in self._former:
            signal.signal(number, self._notice)

    def put_back(self) -> None:
        """Put the former ones back; may be called at any time."""
        for number, handler in self._former.items():
            if handler is not None:  # a handler not installed from Python can't be restored
                signal.signal(number, handler)

    def _notice(self, number: int, _: FrameType | None) -> None:
        if self._together is None:
            self._state.interrupted_by = number
        else:
            self._together.signal = number  # it counts once all ranks know of it
        self.put_back()
        with suppress(OSError):
            os.write(2, b"\nengine-core: ending after this batch; signal again to end at once\n")


def interruption(number: int, batch: int) -> BaseException:
    """Return what ends `fit` after this batch: KeyboardInterrupt for SIGINT, SystemExit with 128 + 15 for SIGTERM."""
    # KeyboardInterrupt itself: at a subclass of it Python does not end as a shell expects after Ctrl-C.
    is_ctrl_c = number == signal.SIGINT
    ended = KeyboardInterrupt(f"ended after batch {batch}") if is_ctrl_c else SystemExit(128 + number)
    setattr(ended, _BETWEEN_BATCHES, True)
    return ended


def is_between_batches(error: BaseException) -> bool:
    """Did an interruption wait for the batch, so that the model is as after a whole step?"""
    return getattr(error, _BETWEEN_BATCHES, False) is True


def ended_together(error: BaseException) -> BaseException:
    """Return the exception that this rank ends with, once the others know; what all agreed on is not a failure."""
    return error if is_between_batches(error) or isinstance(error, GeneratorExit) else ends_with(error)


def ending_together(function: Callable[P, T]) -> Callable[P, T]:
    """Let the function's exceptions end the other ranks too, which raise a RankError."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001  raised below, mostly as it is
            raise ended_together(error)  # noqa: B904

    return wrapper
