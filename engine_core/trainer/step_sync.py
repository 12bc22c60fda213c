"""What the ranks of a run agree on in each step: the loss and what it counts, and requests to end."""

from __future__ import annotations

import time
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from ..event import Event
from ..objective import Loss
from ..state import State
from .data import Feed


class StepSync:
    """One message after the last backward of a step, and more where listeners may ask for something later.

    A request counts from the message that carries it: until then it has no effect on its own rank either.

    Args:
        unheard: events without listeners here; ranks may differ in it.
        feed: knows the rows of the batch as loaded.

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
        table = self._ranks.table([tokens, *self._so_far(began_s), *own])
        self.tokens = int(sum(row[0] for row in table))
        (are_sums, total, count, *parts) = self._learn([row[1:] for row in table])
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

    def _so_far(self, began_s: float) -> list[float]:
        """Return what the others have to know before the step."""
        seconds, skips = time.perf_counter() - began_s, self._state.loop.skip_requested
        may_ask = [event.value not in self._unheard for event in (Event.AFTER_TRAIN_BATCH, Event.BATCH_END)]
        return [seconds, *self._requests(), skips, *may_ask]

    def _learn(self, table: list[list[float]]) -> list[tuple[float, ...]]:
        """Take what `_so_far` returned on each rank; return the columns after it."""
        self.seconds = table[0][0]
        self._obey(row[1:4] for row in table)
        columns = list(zip(*table, strict=True))
        self._state.loop.skip_requested, self._awaits_step, ended = map(any, columns[4:7])
        self._is_settled = not ended
        return columns[7:]

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
