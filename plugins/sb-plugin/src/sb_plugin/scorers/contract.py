"""What a scorer is: it gives each row of a batch a score. Knows no way to score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from engine_core import Event, State
from engine_core.batch import count_rows

from ..subject import Subject

__all__ = ["ByLoss", "Log", "Scorer"]

Log: TypeAlias = dict[str, float] | None
"""What is logged of a step, by name; None where nobody listens."""


class Scorer:
    """Gives each row of a batch a score, higher is harder; this one knows rows alone, for draws without scores.

    A run begins with a new one. What it has learnt of the examples is in `state_dict`.
    """

    def count(self, subject: Subject, batch: Any) -> int:
        """Return the number of rows."""
        return count_rows(batch)

    def check(self, subject: Subject, batch: Any) -> None:
        """Raise if the rows of this batch can't be scored, or dropped; run nothing."""
        subject.rows.check(batch, 1)

    def scores(self, subject: Subject, state: State, batch: Any, generator: torch.Generator, log: Log) -> torch.Tensor:
        """Return the score of each row (n,); what is good to know besides goes into `log`, where one is kept."""
        raise NotImplementedError

    def begin_fit(self) -> None:
        """Forget what waits for a step that will not come: an exception may have ended the last fit."""

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
        """Take back what `state_dict` returned; what another kind of scorer has saved is left alone."""


class ByLoss(Scorer):
    """Scores that are losses of rows, as the run's loss gives them."""

    def count(self, subject: Subject, batch: Any) -> int:
        """Return the number of rows of what the model gets."""
        return count_rows(subject.objective.received(batch))

    def check(self, subject: Subject, batch: Any) -> None:
        """Raise also if there is no loss of each row."""
        subject.objective.check(batch, 1)
