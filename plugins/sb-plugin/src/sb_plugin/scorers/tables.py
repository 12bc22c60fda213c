"""Scores kept by the id of the example: recomputed now and then, or left by training steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from engine_core import Event, State
from engine_core.arguments import item_at
from engine_core.batch import BatchKey
from engine_core.errors import ArgumentError, ArgumentTypeError, BatchKeyError, EngineError
from engine_core.ranks import Ranks

from ..subject import Subject
from ..table import LossTable, StaleScores, check_ids
from .contract import ByLoss, Log
from .forward import ByForward

__all__ = ["Carried", "Stale"]

REMEDY = "sb_plugin.WithIndex(dataset) puts the ids last in each item, at index_key=2 for pairs"
PATIENCE = 3
"""Selective batches after which a loop that has given no loss is assumed to never give one."""


class ByTable(ByLoss):
    """What is kept about the examples of all ranks by their ids."""

    def __init__(self, ranks: Ranks, index_key: BatchKey) -> None:
        super().__init__(ranks)
        self._index_key = index_key

    def check(self, subject: Subject, batch: Any) -> None:
        """Raise also unless each row has an id that is taken along with it."""
        super().check(subject, batch)
        n = subject.count(batch)
        ids = self.ids_in(batch, n)
        check_ids(ids)
        if subject.is_given(ids, batch):
            raise ArgumentError(f"index_key={self._index_key!r} finds the inputs or the targets, not ids; {REMEDY}")
        self.ids_in(subject.take(batch, torch.zeros(1, dtype=torch.long)), 1)

    def ids_in(self, batch: Any, n: int) -> torch.Tensor:
        """Return the ids of the examples of a batch (n,)."""
        try:
            ids = item_at(batch, "index_key", self._index_key)
        except BatchKeyError as error:
            raise BatchKeyError(f"{error}; {REMEDY}") from error
        if not isinstance(ids, torch.Tensor) or ids.shape != (n,):
            found = f"a tensor {tuple(ids.shape)}" if isinstance(ids, torch.Tensor) else f"{ids!r:.80}"
            raise ArgumentTypeError(
                f"index_key={self._index_key!r} finds {found}, not a tensor ({n},) with the id of each of so many "
                f"examples; {REMEDY}"
            )
        return ids

    def gathered_ids(self, subject: Subject, state: State, batch: Any) -> tuple[torch.Tensor, slice]:
        """Return the ids of all ranks, and where this rank's are."""
        ids = self.ids_in(batch, subject.count(batch))
        return self.ranks.gather(ids[: self.number(subject, state, batch)])


class Stale(ByTable):
    """The loss from a forward that each example gets every `refresh` visits."""

    def __init__(self, ranks: Ranks, index_key: BatchKey, refresh: int, device: torch.device) -> None:
        super().__init__(ranks, index_key)
        self._forward = ByForward(ranks)
        self._kept = StaleScores(refresh, device)

    def check(self, subject: Subject, batch: Any) -> None:
        """Raise also if the input can't be scaled."""
        super().check(subject, batch)
        self._forward.check(subject, batch)

    def scores(self, subject: Subject, state: State, batch: Any, generator: torch.Generator, log: Log) -> torch.Tensor:
        """Return what is kept, with the rows that are due scored again."""
        n = subject.count(batch)
        ids, own = self.gathered_ids(subject, state, batch)
        due = self._kept.due(ids)
        if log is not None:
            log["refreshed"] = due.shape[0]
        losses = torch.empty(0, device=ids.device)
        if due.shape[0]:
            here = due[(due >= own.start) & (due < own.stop)] - own.start
            part = batch if here.shape[0] == n else subject.take(batch, _filled_up(here, n))
            losses = self._forward.scores_of(subject, part, here.shape[0], generator, log)
        return self._kept.scores(ids, due, losses)

    def state_dict(self) -> dict[str, Any]:
        """Return the scores and the visits."""
        return {**self._forward.state_dict(), **self._kept.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; a run with another scorer has kept no scores."""
        self._forward.load_state_dict(state)
        if "visits" in state:
            self._kept.load_state_dict(state)


class Carried(ByTable):
    """The losses of earlier training steps: no forward for scoring at all."""

    def __init__(self, ranks: Ranks, index_key: BatchKey, momentum: float, device: torch.device) -> None:
        super().__init__(ranks, index_key)
        self._momentum = momentum
        self.table = LossTable(device)
        self._unanswered = 0
        self._rows_left = 0
        self._found: list[torch.Tensor] | None = None
        """Ids and losses of this rank's rows (n, 2), until all ranks have theirs at BATCH_END."""

    def begin_fit(self) -> None:
        """Forget the losses of a batch that an exception ended."""
        self._found = None

    def scores(self, subject: Subject, state: State, batch: Any, generator: torch.Generator, log: Log) -> torch.Tensor:
        """Return what is kept; an example that was never trained on counts as hardest."""
        self._unanswered += 1
        if self._unanswered > PATIENCE:
            raise EngineError(
                f"selective_backprop with scorer='carried' got no losses for the last {PATIENCE} batches: it computes "
                "them at AFTER_LOSS, after BEFORE_TRAIN_BATCH, from state.outputs; let this loop fire both, or use "
                "scorer='forward'"
            )
        scores = self.table.look_up(self.gathered_ids(subject, state, batch)[0])
        if log is not None:
            log["unseen"] = int((scores == math.inf).sum())
        return scores.nan_to_num(nan=math.nan, posinf=torch.finfo(scores.dtype).max)

    def wants(self, event: Event) -> bool:
        """BEFORE_TRAIN_BATCH, AFTER_LOSS until all rows of the step have come, and BATCH_END on several ranks."""
        if event is Event.AFTER_LOSS:
            return self._rows_left > 0
        return event is Event.BEFORE_TRAIN_BATCH or (event is Event.BATCH_END and self._found is not None)

    def react(self, event: Event, subject: Subject, state: State) -> None:
        """Record the losses of the rows that are trained on, once: those of a second forward in the step differ.

        A loss that is not finite does not replace a finite one: one bad batch would exclude its rows for good.
        """
        if event is Event.BEFORE_TRAIN_BATCH:
            self._rows_left = self.number(subject, state, state.batch)
            self._found = None if self.ranks.size == 1 else []
            return
        if event is Event.AFTER_LOSS:
            losses = subject.losses_of_step()
            ids = self.ids_in(state.batch, losses.shape[0])
            self._rows_left -= losses.shape[0]
            if self._found is not None:
                self._found.append(torch.stack([ids.double(), losses.double()], 1))
                return
        else:
            nothing = torch.empty(0, 2, dtype=torch.float64, device=subject.device)
            found, _ = self.ranks.gather(torch.cat([nothing, *(self._found or ())]))
            ids, losses, self._found = found[:, 0].long(), found[:, 1].float(), None
        self.table.record(ids, losses, self._momentum, keep_finite=True)
        self._unanswered = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the table."""
        return self.table.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; a run with a scoring forward has kept no table."""
        if "table" in state:
            self.table.load_state_dict(state)


def _filled_up(rows: torch.Tensor, n: int) -> torch.Tensor:
    """Return at least two of `n` rows, if there are so many: BatchNorm in train mode can't take a batch of one row."""
    if rows.shape[0] > 1:
        return rows
    others = torch.arange(min(n, 2), device=rows.device)
    return torch.cat([rows, others[others != rows]])[:2] if rows.shape[0] else others
