"""What the ranks of a run agree on in each step: shares of the loss, the loss itself, and requests to end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import torch

from ..batch import count_rows, split_batch
from ..errors import EngineError
from ..state import State
from .data import Feed
from .objective import counts_by_rows, divisor_of


class Agreement:
    """One message before the microbatches, one after them and, where somebody may ask for the end, one at the end.

    A request counts from the message that carries it: until then it has no effect on its own rank either.

    Args:
        unheard: events without listeners here; ranks may differ in it.
        feed: knows the rows of the batch as loaded.

    Attributes:
        rows: of the global batch, as loaded.
        weight: what the loss of the batch counts in the epoch's mean.
        seconds: rank 0's time in the batch.
        stop: did a rank ask for the end, with a stop or a pause?
        signal: which was noted on this rank and that others don't know of yet.
    """

    def __init__(self, state: State, unheard: AbstractSet[str], feed: Feed) -> None:
        self.rows = 0
        self.weight = self.seconds = 0.0
        self.stop = False
        self.signal: int | None = None
        self._state, self._ranks = state, state.ranks
        self._unheard, self._feed = unheard, feed
        self._whole: Any = None
        self._pieces: list[tuple[Any, float]] = []
        self._awaits_skip = self._is_settled = False

    def share(self, batch: Any, size: int | None) -> list[tuple[Any, float]]:
        """Return this rank's microbatches, each with its share of the global batch's loss; the shares add up to 1.

        A sum has shares of 1. At least one microbatch is returned: gradients wait for one of each rank. A second pass
        over the batch gets what the first got.
        """
        if batch is self._whole:
            return self._pieces
        state, loss_fn = self._state, self._state.loss_fn
        pieces = [piece for piece, _ in split_batch(batch, count_rows(batch) if size is None else size)]
        rows = [0.0 if state.is_placeholder else float(count_rows(piece)) for piece in pieces]
        divisor, knows = divisor_of(loss_fn), state.is_placeholder or not counts_by_rows(loss_fn, batch)
        is_sum = divisor is None
        divisors = (
            rows
            if divisor is None or not knows
            else [n and float(divisor(p)) for p, n in zip(pieces, rows, strict=True)]
        )
        table = self._ranks.table([knows, sum(divisors), sum(rows), self._feed.rows, len(pieces)])
        self._count(table)
        by_rows = is_sum or not all(row[0] for row in table)  # if one rank can't tell its divisor
        weights, self.weight = (rows if by_rows else divisors), sum(row[2 if by_rows else 1] for row in table)
        state.loss_weight = self.weight
        # Without a target that counts the loss is what it is on one process, which weights nothing.
        no_weights = is_sum or not self.weight
        shares = [float(n > 0) if no_weights else weight / self.weight for n, weight in zip(rows, weights, strict=True)]
        dealt = list(zip(pieces, shares, strict=True))
        dealt = [(piece, share) for piece, share in dealt if share] or dealt[:1]
        if self._ranks.is_sharded:
            most = int(max(row[4] for row in table))
            dealt += [(dealt[-1][0], 0.0)] * (most - len(dealt))
        self._whole, self._pieces = batch, dealt
        return dealt

    def add_up(
        self, loss: torch.Tensor, parts: Mapping[str, torch.Tensor], began_s: float
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the loss of the global batch and its parts; requests made so far count from here."""
        state, unheard = self._state, self._unheard
        hears_step, hears_end = ("after_train_batch" not in unheard), ("batch_end" not in unheard)
        own = [time.perf_counter() - began_s, *self._requests(), state.skip_requested, hears_step, hears_end]
        table = self._ranks.table([*own, loss.item(), *(part.item() for part in parts.values())])
        self.seconds = table[0][0]
        self._obey(row[1:4] for row in table)
        skips, heard, ended, *sums = (sum(column) for column in list(zip(*table, strict=True))[4:])
        state.skip_requested = bool(skips)
        self._awaits_skip, self._is_settled = bool(heard), not (heard or ended)
        total, *values = (loss.new_tensor(value) for value in sums)
        return total, dict(zip(parts, values, strict=True))

    def agree_on_step(self) -> None:
        """Skip the step everywhere if a rank asked for it at AFTER_TRAIN_BATCH; the batch needs no second pass."""
        self._whole = None
        if self._awaits_skip:
            self._state.skip_requested = self._ranks.any(self._state.skip_requested)

    def agree_on_end(self, *, is_settled: bool = False) -> None:
        """Obey what any rank has asked for, unless nothing could ask since the last message."""
        if is_settled and self._is_settled:
            return
        self._obey(self._ranks.table(self._requests()))

    def _requests(self) -> list[float]:
        state = self._state
        return [state.stop_requested, state.pause_requested, self.signal or 0]

    def _obey(self, table: Iterable[list[float]]) -> None:
        state, table = self._state, list(table)
        stops, pauses, signals = (list(column) for column in zip(*table, strict=True))
        self.stop = state.stop_requested = any(stops)
        # A stop that is not a pause wins, as it does within one process.
        state.pause_requested = any(pauses) and not any(s and not p for s, p in zip(stops, pauses, strict=True))
        state.interrupted_by = self.signal = int(max(signals)) or None

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
