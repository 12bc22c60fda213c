"""SIGINT and SIGTERM during a fit, an evaluation or a prediction end it between two batches. Knows no loop."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import ParamSpec, TypeVar

from ..loop import BegunEvaluation
from ..parallel import ends_with
from ..signals import SignalGuard
from ..state import State
from .step_sync import StepSync

_BETWEEN_BATCHES = "is_between_batches"


P = ParamSpec("P")
T = TypeVar("T")


class EvaluationInterrupted(BaseException):
    """Ends an evaluation that is to be finished later; carries how far it is."""

    def __init__(self, begun: BegunEvaluation) -> None:
        self.begun = begun


@contextmanager
def signals_noted(state: State, together: StepSync | None = None) -> Iterator[None]:
    """Let the first SIGINT or SIGTERM in the block set `state.loop.interrupted_by`; at the latest its end raises it.

    Args:
        together: what ranks agree on; then it counts once all of them know of it.
    """
    process, is_whole = os.getpid(), True

    def note(number: int) -> None:
        if os.getpid() != process:  # a worker of a loader, which has the handler too where it was forked
            return
        if together is None:
            state.loop.interrupted_by = number
        else:
            together.signal = number
        with suppress(OSError):
            os.write(2, b"\nengine-core: ending after this batch; signal again to end at once\n")

    try:
        with SignalGuard(note):
            try:
                yield
            except EvaluationInterrupted:
                pass
            except RuntimeError as error:
                if not lost_workers(error, state):
                    raise
                is_whole = False  # torch raises this wherever the main thread is
            if together is not None:
                together.agree_on_end()
        if state.loop.interrupted_by is not None:
            raise interruption(state.loop.interrupted_by, state.timestamp.batch, is_whole=is_whole) from None
    finally:
        state.loop.interrupted_by = None  # it has ended this block, and says nothing about the next
        if together is not None:
            together.signal = None


def lost_workers(error: RuntimeError, state: State) -> bool:
    """Did the signal that was noted go to the whole group of processes, and end a loader's workers too?"""
    return state.loop.interrupted_by is not None and "DataLoader worker" in str(error)


def interruption(number: int, batch: int, *, is_whole: bool = True) -> BaseException:
    """Return what a signal ends a loop with: KeyboardInterrupt for SIGINT, SystemExit with 128 + 15 for SIGTERM."""
    # KeyboardInterrupt itself: at a subclass of it Python does not end as a shell expects after Ctrl-C.
    is_ctrl_c = number == signal.SIGINT
    ended = KeyboardInterrupt(f"ended after batch {batch}") if is_ctrl_c else SystemExit(128 + number)
    setattr(ended, _BETWEEN_BATCHES, is_whole)
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
