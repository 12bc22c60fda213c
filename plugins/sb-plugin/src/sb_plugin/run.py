"""What belongs to one run: what is scored and by what, and how much was left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine_core import Timestamp
from engine_core.arguments import check_number, check_whole

from .scorers import Scorer
from .subject import Subject

__all__ = ["NAME", "Run", "counts_of"]

NAME = "selective_backprop"


@dataclass
class Run:
    """What belongs to one run; never kept for the next one.

    Args:
        dropped: how many rows were left out.
        scoring_s: the time spent scoring.
    """

    subject: Subject
    scorer: Scorer
    dropped: int = 0
    scoring_s: float = 0.0

    def restore(self, scorer: Scorer, dropped: int, scoring_s: float) -> None:
        """Continue from what was saved; a run that goes back keeps its count of dropped rows, and its time."""
        self.scorer, self.dropped = scorer, max(self.dropped, dropped)
        self.scoring_s = max(self.scoring_s, scoring_s)

    def shares(self, dropped: int, clock: Timestamp) -> dict[str, float]:
        """Return the fraction of the rows that were trained on, and that of the time that scoring took."""
        shares = {}
        if clock.sample:
            shares[f"{NAME}/kept_fraction"] = 1 - dropped / clock.sample
        if clock.elapsed_s > 0:
            shares[f"time/{NAME}/scoring_fraction"] = self.scoring_s / clock.elapsed_s
        return shares


def counts_of(saved: Mapping[str, Any]) -> tuple[int, float]:
    """Return how many rows were left out, and the seconds spent scoring, when `saved` was made."""
    dropped = check_whole("dropped", saved.get("dropped", 0), "[0, inf)", "how many rows were left out")
    return dropped, check_number("scoring_s", saved.get("scoring_s", 0.0), "[0, inf)", "the time spent scoring")
