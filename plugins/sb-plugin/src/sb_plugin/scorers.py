"""Where the scores of a batch come from: a forward, a table of earlier losses, both, or a function of the user's."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch

from engine_core import Event, State
from engine_core.arguments import item_at
from engine_core.batch import count_rows, take_rows
from engine_core.errors import ArgumentError, ArgumentTypeError, EngineError
from engine_core.items import BatchKey

from .replaying import Reuse
from .scoring import rank_correlation
from .subject import Subject
from .table import LossTable, StaleScores
from .untouched import fresh_seed

__all__ = ["Carried", "Scorer", "make_scorer"]

WORTHLESS = 0.5
"""The rank correlation below which scores of scaled inputs are warned of."""


class Scorer:
    """Gives each row of a batch a score, higher is harder; this one knows rows alone, for draws without scores.

    A new run begins with a new one. What was learnt of the examples is in `state_dict`.
    """

    def count(self, subject: Subject, batch: Any) -> int:
        """Return the number of rows."""
        return count_rows(batch)

    def check(self, subject: Subject, batch: Any) -> None:
        """Raise if the rows of this batch can't be scored; run nothing."""
        self.count(subject, batch)

    def scores(self, subject: Subject, state: State, generator: torch.Generator, log: dict[str, float]) -> torch.Tensor:
        """Return the score of each row (n,); what is good to know besides goes into `log`."""
        raise NotImplementedError

    def keep(self, rows: torch.Tensor) -> None:
        """Hear which rows (k,) the step trains on."""

    def wants(self, event: Event) -> bool:
        """Is there something to do at this event of the step?"""
        return False

    def react(self, event: Event, subject: Subject, state: State) -> None:
        """Do it."""

    def state_dict(self) -> dict[str, Any]:
        """Return what is known of the examples."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""


class ByLoss(Scorer):
    """Scores that are losses of rows, as the run's loss gives them."""

    def count(self, subject: Subject, batch: Any) -> int:
        """Return the number of rows of what the model gets."""
        return count_rows(subject.objective.received(batch))

    def check(self, subject: Subject, batch: Any) -> None:
        """Raise also if there is no loss of each row, or the input can't be scaled."""
        subject.objective.check(batch, subject.manner.scale_factor)


class ByForward(ByLoss):
    """The loss of a forward without gradients on the whole batch.

    Args:
        reuse: `"off"`, or what to do where the step can't take over what its linear layers gave: `"auto"`, `"on"`.
    """

    def __init__(self, reuse: str = "off") -> None:
        self._has_compared = False
        self._reuse = None if reuse == "off" else Reuse(is_demanded=reuse == "on")

    def check(self, subject: Subject, batch: Any) -> None:
        """Raise also if something is to be taken over that can't be."""
        super().check(subject, batch)
        if self._reuse is not None:
            self._reuse.check(subject.model, subject.precision)

    def scores(self, subject: Subject, state: State, generator: torch.Generator, log: dict[str, float]) -> torch.Tensor:
        """Return the losses; the first time compare those of scaled inputs with the true ones."""
        seed = fresh_seed(generator)
        reuse, model = self._reuse, subject.model
        with nullcontext() if reuse is None else reuse.recording(model, state.batch, subject.precision):
            losses = subject.score(state.batch, seed)
        if subject.manner.scale_factor != 1 and not self._has_compared:
            self._has_compared = True
            self._compare(subject, losses, subject.score_at_full_size(state.batch, seed), log)
        return losses

    def keep(self, rows: torch.Tensor) -> None:
        """Hear which rows (k,) the step trains on."""
        if self._reuse is not None:
            self._reuse.keep(rows)

    def wants(self, event: Event) -> bool:
        """BEFORE_FORWARD, where there is something to take over, and AFTER_FORWARD, where it was."""
        return self._reuse is not None and self._reuse.awaited is event

    def react(self, event: Event, subject: Subject, state: State) -> None:
        """Begin and end to take over what was computed."""
        if self._reuse is not None:
            self._reuse.react(event)

    def _compare(self, subject: Subject, losses: torch.Tensor, true: torch.Tensor, log: dict[str, float]) -> None:
        correlation = log["rank_correlation"] = rank_correlation(losses, true)
        if correlation < WORTHLESS:
            warnings.warn(
                f"selective_backprop: with scale_factor={subject.manner.scale_factor} the losses of the scaled inputs "
                f"rank the rows otherwise than their true losses do (rank correlation {correlation:.2f}), so that it "
                "picks rows nearly at random: set scale_factor=1",
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return whether scaled inputs have been compared."""
        return {"has_compared": True} if self._has_compared else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._has_compared = state.get("has_compared") is True


class ByFunction(Scorer):
    """What a function of the user's gives for the batch and the State; its forwards leave no trace."""

    def __init__(self, function: Callable[[Any, State], Any]) -> None:
        self._function = function

    def scores(self, subject: Subject, state: State, generator: torch.Generator, log: dict[str, float]) -> torch.Tensor:
        """Return what the function gives, in single precision."""
        n = self.count(subject, state.batch)
        name = getattr(self._function, "__qualname__", type(self._function).__name__)
        with subject.untouched(fresh_seed(generator)):
            scores = self._function(state.batch, state)
        if not isinstance(scores, torch.Tensor):
            raise ArgumentTypeError(f"the scorer {name} gave {scores!r}, not a tensor of shape ({n},)")
        if scores.shape != (n,):
            raise ArgumentError(f"the scorer {name} gave shape {tuple(scores.shape)}, not ({n},), a score for each row")
        return scores.detach().float()


class ByTable(ByLoss):
    """What is known of the examples by their ids."""

    def __init__(self, index_key: BatchKey) -> None:
        self._index_key = index_key

    def check(self, subject: Subject, batch: Any) -> None:
        """Raise also if there is not an id for each row."""
        super().check(subject, batch)
        self.ids_in(batch, self.count(subject, batch))

    def ids_in(self, batch: Any, n: int) -> torch.Tensor:
        """Return the ids of the examples of a batch (n,)."""
        ids = item_at(batch, "index_key", self._index_key)
        if not isinstance(ids, torch.Tensor) or ids.shape != (n,) or ids.is_floating_point():
            found = f"a tensor {tuple(ids.shape)} of {ids.dtype}" if isinstance(ids, torch.Tensor) else repr(ids)
            raise ArgumentTypeError(
                f"index_key={self._index_key!r} finds {found}, not the id of each example, whole numbers ({n},); "
                "sb_plugin.WithIndex(dataset) puts them last in each item, at index_key=2 for pairs"
            )
        return ids


class Stale(ByTable, ByForward):
    """The loss of a forward that each example gets every `refresh` visits."""

    def __init__(self, index_key: BatchKey, refresh: int, device: torch.device) -> None:
        ByForward.__init__(self)
        ByTable.__init__(self, index_key)
        self._scores = StaleScores(refresh, device)

    def scores(self, subject: Subject, state: State, generator: torch.Generator, log: dict[str, float]) -> torch.Tensor:
        """Return what is kept, with the rows that are due scored anew."""
        whole, n = state.batch, self.count(subject, state.batch)
        ids = self.ids_in(whole, n)
        due = self._scores.due(ids)
        log["refreshed"] = due.shape[0]
        losses = torch.empty(0, device=ids.device)
        if due.shape[0]:
            state.batch = whole if due.shape[0] == n else take_rows(whole, n, due)
            try:
                losses = super().scores(subject, state, generator, log)
            finally:
                state.batch = whole
        return self._scores.scores(ids, due, losses)

    def state_dict(self) -> dict[str, Any]:
        """Return the table and the visits."""
        return {**super().state_dict(), **self._scores.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned; a run that kept no table, as with another scorer, begins with none."""
        super().load_state_dict(state)
        if "table" in state:
            self._scores.load_state_dict(state)


class Carried(ByTable):
    """The losses of earlier training steps: no forward for scoring at all."""

    def __init__(self, index_key: BatchKey, momentum: float, device: torch.device) -> None:
        super().__init__(index_key)
        self._momentum = momentum
        self._table = LossTable(device)
        self._has_asked = self._has_heard = False
        self._rows_left = 0

    def check(self, subject: Subject, batch: Any) -> None:
        """Raise if there is no loss, or no id, for each row."""
        subject.objective.check(batch, 1)
        self.ids_in(batch, self.count(subject, batch))

    def scores(self, subject: Subject, state: State, generator: torch.Generator, log: dict[str, float]) -> torch.Tensor:
        """Return what is kept; an example that was never trained on counts as hardest."""
        if self._has_asked and not self._has_heard:
            raise EngineError(
                "selective_backprop with scorer='carried' has been told no loss: it takes them at AFTER_FORWARD, after "
                "BEFORE_TRAIN_BATCH; let this loop fire both, or take scorer='forward'"
            )
        self._has_asked = True
        scores = self._table.look_up(self.ids_in(state.batch, self.count(subject, state.batch)))
        unseen = scores == math.inf
        log["unseen"] = int(unseen.sum())
        return scores.masked_fill(unseen, torch.finfo(scores.dtype).max)

    def wants(self, event: Event) -> bool:
        """BEFORE_TRAIN_BATCH, and AFTER_FORWARD until all rows of the step have come."""
        return event is Event.BEFORE_TRAIN_BATCH or (event is Event.AFTER_FORWARD and self._rows_left > 0)

    def react(self, event: Event, subject: Subject, state: State) -> None:
        """Take the losses of the rows that train, once: those of a second forward of the step are others."""
        if event is Event.BEFORE_TRAIN_BATCH:
            self._rows_left = self.count(subject, state.batch)
            return
        losses = subject.losses_of(state.outputs, state.batch)
        self._table.record(self.ids_in(state.batch, losses.shape[0]), losses, self._momentum)
        self._rows_left -= losses.shape[0]
        self._has_heard = True

    def state_dict(self) -> dict[str, Any]:
        """Return the table."""
        return self._table.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned; a run that kept no table, as with another scorer, begins with none."""
        if "table" in state:
            self._table.load_state_dict(state)


def make_scorer(settings: Mapping[str, Any], device: torch.device) -> Scorer:
    """Return a scorer that knows nothing yet.

    Args:
        settings: by the names of the constructor's arguments.
    """
    scorer, index_key = settings["scorer"], settings["index_key"]
    if settings["selector"] == "uniform":
        return Scorer()
    if callable(scorer):
        return ByFunction(scorer)
    if scorer == "stale":
        return Stale(index_key, settings["refresh"], device)
    return Carried(index_key, settings["momentum"], device) if scorer == "carried" else ByForward(settings["reuse"])
