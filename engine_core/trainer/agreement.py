"""What the ranks of a run agree on in each step: shares of the loss, the loss itself, and requests to end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import torch

from ..algorithm import algorithm_metadata
from ..batch import count_rows, split_batch
from ..embed import counts_by_rows, divisor_of, reduce_loss
from ..errors import EngineError
from ..event import Event
from ..state import State
from .data import Feed
from .microbatches import ONCE_MORE

AT_BACKWARD = (Event.BEFORE_BACKWARD, Event.AFTER_BACKWARD)


class Agreement:
    """One message at the loss, or one before the microbatches and one after them; more where listeners may ask later.

    A request counts from the message that carries it: until then it has no effect on its own rank either.

    Args:
        unheard: events without listeners here; ranks may differ in it.
        feed: knows the rows of the batch as loaded.

    Attributes:
        rows: of the global batch, as loaded.
        seconds: rank 0's time in the batch.
        stop: did a rank ask for the end, with a stop or a pause?
        signal: which was noted on this rank and that others don't know of yet.
    """

    def __init__(self, state: State, unheard: AbstractSet[str], feed: Feed) -> None:
        self.rows = 0
        self.seconds = 0.0
        self.stop = False
        self.signal: int | None = None
        self._state, self._ranks = state, state.ranks
        self._unheard, self._feed = unheard, feed
        self._whole: Any = None
        self._pieces: list[tuple[Any, float | None]] = []
        self._own: list[float] = []
        self._sums: list[float] | None = None
        self._awaits_step = self._is_settled = False
        self._asked: tuple[Any, Any] | None = None

    def begin_fit(self) -> None:
        """Forget what ended an earlier fit."""
        self.stop, self.signal = self._state.stop_requested, None

    def share(self, batch: Any, size: int | None) -> list[tuple[Any, float | None]]:
        """Return this rank's microbatches, each with its share of the global batch's loss; the shares add up to 1.

        A batch that is not split has None, and gets its share in `reduce`. A sum has shares of 1. At least one
        microbatch is returned: gradients wait for one of each rank. A second pass over the batch gets what the first
        got.
        """
        if batch is self._whole:
            return self._pieces
        state, loss_fn = self._state, self._state.loss_fn
        pieces = [piece for piece, _ in split_batch(batch, count_rows(batch) if size is None else size)]
        rows = [0.0 if state.is_placeholder else float(count_rows(piece)) for piece in pieces]
        divisor, knows = self._divisor_of(loss_fn), state.is_placeholder or not counts_by_rows(loss_fn, batch)
        divisors = (
            rows
            if divisor is None or not knows
            else [n and float(divisor(p)) for p, n in zip(pieces, rows, strict=True)]
        )
        self._own = [knows, sum(divisors), sum(rows), self._feed.rows, len(pieces)]
        if size is None:  # one piece on each rank, which is weighted once its loss is known
            self._whole, self._pieces = batch, [(batch, None)]
            return self._pieces
        table = self._ranks.table(self._own)
        by_rows, total = self._weigh(table)
        weights = rows if by_rows else divisors
        shares = [weight / total if total else float(n > 0) for n, weight in zip(rows, weights, strict=True)]
        dealt = list(zip(pieces, shares, strict=True))
        dealt = [(piece, share) for piece, share in dealt if share] or dealt[:1]
        if self._ranks.is_sharded:
            most = int(max(row[4] for row in table))
            dealt += [(dealt[-1][0], ONCE_MORE)] * (most - len(dealt))
        self._whole, self._pieces = batch, [*dealt]
        return self._pieces

    def reduce(self, loss: Any, share: float | None, began_s: float) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return a microbatch's loss and its parts as `reduce_loss` does; a whole batch gets its share here.

        The same message adds the losses up, unless an algorithm may change one between here and `add_up`. Callbacks
        there only watch, and what they ask for has to be known before the step.
        """
        if share is not None:
            return reduce_loss(loss, share)
        total, parts = reduce_loss(loss, None)
        changes = self._hears(*AT_BACKWARD) and self._has_algorithm(*AT_BACKWARD)
        losses = [total.item(), *(part.item() for part in parts.values())]
        table = self._ranks.table([*self._own, changes, *self._so_far(began_s, *AT_BACKWARD), *losses])
        by_rows, whole = self._weigh(table)
        shares = [row[2 if by_rows else 1] / whole if whole else float(row[2] > 0) for row in table]
        self._sums = None
        if not any(row[5] for row in table):
            sums = self._learn([row[6:] for row in table])
            self._sums = [sum(own * value for own, value in zip(shares, column, strict=True) if own) for column in sums]
        share = shares[self._ranks.rank]
        self._pieces = [(self._whole, share)]
        return reduce_loss({**parts, "total": total} if parts else total, share)

    def add_up(
        self, loss: torch.Tensor, parts: Mapping[str, torch.Tensor], began_s: float
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the loss of the global batch and its parts; requests made so far count from here."""
        sums, self._sums = self._sums, None
        if sums is None:
            losses = [loss.item(), *(part.item() for part in parts.values())]
            sums = [sum(column) for column in self._learn(self._ranks.table([*self._so_far(began_s), *losses]))]
        total, *values = (loss.new_tensor(value) for value in sums)
        return total, dict(zip(parts, values, strict=True))

    def agree_on_step(self) -> None:
        """Obey what any rank asked for at AFTER_TRAIN_BATCH, such as to skip the step; the batch has no second pass."""
        self._whole = None
        if self._awaits_step:
            table = self._ranks.table([*self._requests(), self._state.skip_requested])
            self._obey(row[:3] for row in table)
            self._state.skip_requested = any(row[3] for row in table)

    def agree_on_end(self, *, is_settled: bool = False) -> None:
        """Obey what any rank has asked for, unless nothing could ask since the last message."""
        if is_settled and self._is_settled:
            return
        self._obey(self._ranks.table(self._requests()))

    def _divisor_of(self, loss_fn: Any) -> Any:
        if self._asked is None or self._asked[0] is not loss_fn:  # asking a loss for its settings is slow
            self._asked = loss_fn, divisor_of(loss_fn)
        return self._asked[1]

    def _weigh(self, table: list[list[float]]) -> tuple[bool, float]:
        """Take rows and weight of the global batch; return whether weights go by rows, and by what they are divided.

        That is 0 where shares are 1: for a sum, and without a target that counts, where one process weights nothing.
        """
        self._count(table)
        is_sum = self._divisor_of(self._state.loss_fn) is None
        by_rows = is_sum or not all(row[0] for row in table)  # if one rank can't tell its divisor
        weight = self._state.loss_weight = sum(row[2 if by_rows else 1] for row in table)
        return by_rows, 0.0 if is_sum else weight

    def _so_far(self, began_s: float, *to_come: Event) -> list[float]:
        """Return what the others have to know before the step; `to_come`: events that have not fired."""
        seconds, skips = time.perf_counter() - began_s, self._state.skip_requested
        may_ask = self._hears(*to_come, Event.AFTER_TRAIN_BATCH), self._hears(Event.BATCH_END)
        return [seconds, *self._requests(), skips, *may_ask]

    def _learn(self, table: list[list[float]]) -> list[tuple[float, ...]]:
        """Take what `_so_far` returned on each rank; return the columns after it."""
        self.seconds = table[0][0]
        self._obey(row[1:4] for row in table)
        columns = list(zip(*table, strict=True))
        self._state.skip_requested, self._awaits_step, ended = map(any, columns[4:7])
        self._is_settled = not ended
        return columns[7:]

    def _hears(self, *events: Event) -> bool:
        return any(event.value not in self._unheard for event in events)

    def _has_algorithm(self, *events: Event) -> bool:
        listed = (algorithm_metadata(algorithm).events for algorithm in self._state.algorithms)
        return any(names is None or any(event in names for event in events) for names in listed)

    def _requests(self) -> list[float]:
        state = self._state
        return [state.stop_requested, state.pause_requested, self.signal or 0]

    def _obey(self, table: Iterable[list[float]]) -> None:
        state, table = self._state, list(table)
        stops, pauses, signals = (list(column) for column in zip(*table, strict=True))
        self.stop = state.stop_requested = any(stops)
        # A stop that is not a pause wins, as it does within one process.
        pauses_all = any(pauses) and not any(s and not p for s, p in zip(stops, pauses, strict=True))
        state.pause_requested = state.pause_agreed = pauses_all
        state.interrupted_by = int(max(signals)) or None
        # One that came while this rank waited for the message is in none yet: it stays noted for the next.
        self.signal = state.interrupted_by or self.signal

    def _count(self, table: list[list[float]]) -> None:
        """Take the rows of the global batch: the same on all ranks, or the sum of their parts."""
        rows = [int(row[3]) for row in table]
        if not self._feed.is_local and len({*rows}) > 1:
            each = ", ".join(f"rank {rank}: {n}" for rank, n in enumerate(rows))
            raise EngineError(
                f"the train_dataloader gave the ranks different batches ({each} rows): each rank has to read the same "
                "data in the same order; for a loader of a rank's own rows give Trainer(parallel=DDP(data='local'))"
            )
        self.rows = sum(rows) if self._feed.is_local else rows[0]
