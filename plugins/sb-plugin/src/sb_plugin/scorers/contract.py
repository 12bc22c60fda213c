"""What a scorer is: it gives each row of a batch a score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from engine_core import Event, State
from engine_core.ranks import Ranks

from ..subject import Subject

__all__ = ["ByLoss", "Log", "Scorer"]

Log: TypeAlias = dict[str, float] | None
"""What is logged about a step, by name; None without a logger."""


class Scorer:
    """Gives each row of a batch a score, higher is harder; this one only counts rows, for draws without scores.

    A run starts with a new one. What it has learnt about the examples is in `state_dict`.

    Args:
        ranks: whose rows are scored together; what one of them is told about the examples all are.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def number(self, subject: Subject, state: State, batch: Any) -> int:
        """Return how many rows of this rank count."""
        return 0 if state.is_placeholder else subject.count(batch)

    def check(self, subject: Subject, batch: Any) -> None:
        """Raise if the rows of this batch can't be scored, or dropped; run nothing."""
        subject.check_rows(batch)

    def scores(self, subject: Subject, state: State, batch: Any, generator: torch.Generator, log: Log) -> torch.Tensor:
        """Return the score of each row of all ranks (n,); further figures go into `log`, if there is one.

        Args:
            batch: this rank's rows.
            generator: the ranks' own; all draw alike from it.
        """
        raise NotImplementedError

    def begin_fit(self) -> None:
        """Forget what was kept for a step that will not come: an exception may have ended the last fit."""

    def keep(self, rows: torch.Tensor, k: int, state: State) -> None:
        """Note which of this rank's rows the step trains on, of the `k` of all ranks."""

    def wants(self, event: Event) -> bool:
        """Is there something to do at this event of the step?"""
        return False

    def react(self, event: Event, subject: Subject, state: State) -> None:
        """Do it."""

    def state_dict(self) -> dict[str, Any]:
        """Return what is known about the examples."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; what another kind of scorer has saved is ignored."""


class ByLoss(Scorer):
    """Scores that are row losses, as the run's loss gives them."""

    def check(self, subject: Subject, batch: Any) -> None:
        """Raise also if there is no loss per row."""
        super().check(subject, batch)
        subject.check_loss(batch)
