"""Signals and requests, which end a loop between two batches, and what ranks agree on in a step. Knows no loop."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from typing import ParamSpec, TypeVar

from ..event import Event
from ..loop import BegunEvaluation
from ..objective import Loss
from ..parallel import ends_with
from ..signals import SignalGuard
from ..state import State
from .feed import Feed

_BETWEEN_BATCHES = "is_between_batches"


P = ParamSpec("P")
T = TypeVar("T")


class EvaluationInterrupted(BaseException):
    """Ends an evaluation that is to be finished later; carries how far it is."""

    def __init__(self, begun: BegunEvaluation) -> None:
        self.begun = begun


@contextmanager
def signals_noted(state: State, together: StepSync | None = None) -> Iterator[None]:
    """Let the first SIGINT or SIGTERM in the block set `interrupted_by`, once all ranks know; its end raises it."""
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


class StepSync:
    """One message after the last backward of a step, and more where listeners may ask for something later.

    A request counts from the message that carries it: until then it has no effect on its own rank either.

    Attributes:
        tokens: of the global batch, as loaded.
        seconds: rank 0's time in the batch.
        stop: did a rank ask for the end, with a stop or a pause?
        signal: which was noted on this rank and that others don't know of yet.
    """

    def __init__(self, state: State, unheard: AbstractSet[str], feed: Feed) -> None:
        self.tokens, self.seconds = 0, 0.0
        self.stop = False
        self.signal: int | None = None
        self._state, self._ranks = state, state.ranks
        self._unheard, self._feed = unheard, feed
        self._awaits_step = self._is_settled = False

    def begin_fit(self) -> None:
        """Forget what ended an earlier fit."""
        self.stop = self._state.loop.stop_requested

    @property
    def rows(self) -> int:
        """The rows of the global batch, as loaded."""
        return 0 if self._feed.dealt is None else self._feed.dealt.rows

    @property
    def nominal(self) -> float:
        """By what losses are divided before the backward, the same on all ranks: about the rows of one of them."""
        return self.rows / self._ranks.size

    def most(self, parts: int) -> int:
        """Return the largest number of microbatches, where a forward of one rank waits for all: else this rank's."""
        return int(max(own for (own,) in self._ranks.table([parts]))) if self._ranks.is_sharded else parts

    def add_up(self, loss: Loss, tokens: int, began_s: float) -> Loss:
        """Return the loss of the global batch; requests made so far count from here."""
        own = [loss.count is None, loss.sum.item(), float(0 if loss.count is None else loss.count)]
        own += [part.item() for part in loss.parts.values()]
        seconds, loop = time.perf_counter() - began_s, self._state.loop
        may_ask = [event.value not in self._unheard for event in (Event.AFTER_TRAIN_BATCH, Event.BATCH_END)]
        table = self._ranks.table([*self._requests(), loop.skip_requested, *may_ask, tokens, seconds, *own])
        self._obey(row[:3] for row in table)
        loop.skip_requested, self._awaits_step, ended = (any(row[place] for row in table) for place in (3, 4, 5))
        self._is_settled = not ended
        all_tokens, all_seconds, are_sums, total, count, *parts = zip(*(row[6:] for row in table), strict=True)
        self.tokens, self.seconds = int(sum(all_tokens)), all_seconds[0]
        values = [loss.sum.new_tensor(sum(value)) for value in (total, *parts)]
        return Loss(values[0], None if any(are_sums) else sum(count), dict(zip(loss.parts, values[1:], strict=True)))

    def agree_on_step(self) -> None:
        """Obey what any rank asked for at AFTER_TRAIN_BATCH, such as to skip the step."""
        if self._awaits_step:
            table = self._ranks.table([*self._requests(), self._state.loop.skip_requested])
            self._obey(row[:3] for row in table)
            self._state.loop.skip_requested = any(row[3] for row in table)

    def agree_on_end(self, *, is_settled: bool = False) -> None:
        """Obey what any rank has asked for, unless nothing could ask since the last message."""
        if is_settled and self._is_settled:
            return
        self._obey(self._ranks.table(self._requests()))

    def _requests(self) -> list[float]:
        loop = self._state.loop
        return [loop.stop_requested, loop.pause_requested, self.signal or 0]

    def _obey(self, table: Iterable[list[float]]) -> None:
        loop, table = self._state.loop, list(table)
        stops, pauses, signals = (list(column) for column in zip(*table, strict=True))
        self.stop = loop.stop_requested = any(stops)
        # A stop that is not a pause wins, as it does within one process.
        pauses_all = any(pauses) and not any(s and not p for s, p in zip(stops, pauses, strict=True))
        loop.pause_requested = loop.pause_agreed = pauses_all
        loop.interrupted_by = int(max(signals)) or None
        # One that came while this rank waited for the message is in none yet: it stays noted for the next.
        self.signal = loop.interrupted_by or self.signal
