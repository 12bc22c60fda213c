"""Scores from the user's function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from engine_core import State
from engine_core.ranks import Ranks

from ..scoring import as_scores
from ..subject import Subject
from ..untouched import fresh_seed
from .contract import Log, Scorer

__all__ = ["ByFunction"]


class ByFunction(Scorer):
    """What a function returns for the batch and the State; its forwards leave no trace."""

    def __init__(self, ranks: Ranks, function: Callable[[Any, State], Any]) -> None:
        super().__init__(ranks)
        self._function = function

    def scores(self, subject: Subject, state: State, batch: Any, generator: torch.Generator, log: Log) -> torch.Tensor:
        """Return what the function returns, in single precision."""
        n = subject.count(batch)
        name = getattr(self._function, "__qualname__", type(self._function).__name__)
        seed = fresh_seed(generator) + self.ranks.rank
        scores = subject.untouched(lambda: self._function(batch, state), seed)
        return self.ranks.gather(as_scores(scores, n, f"the scorer {name}")[: self.number(subject, state, batch)])[0]
