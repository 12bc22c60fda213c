"""Experiments that sb-plugin does not have: kept rows weighted as InfoBatch does, and a `keep` that changes."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch.nn import functional as F

from engine_core import Algorithm, AlgorithmMetadata, Callback, Event, Logger, State
from sb_plugin import SelectiveBackprop


class KeepTheHardest:
    """Keep a share of the rows for their loss, and fill up with others at random.

    Source: Qin et al. 2024, InfoBatch, arXiv 2303.04947, with a fixed number of rows: there all rows above the mean
    loss are kept, here a share. Rows drawn with probability p are weighted 1/p, so the mean gradient does not change.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.weights: torch.Tensor | None = None

    def __call__(self, scores: torch.Tensor, k: int, generator: torch.Generator) -> torch.Tensor:
        """Return the `k` rows, ascending, and store their weights."""
        n, hard = len(scores), min(k, int(self.share * len(scores)))
        shuffled = torch.randperm(n, generator=generator)  # rows of equal score are taken at random
        places = shuffled[scores[shuffled].argsort(descending=True)]
        drawn = hard + torch.randperm(n - hard, generator=generator)[: k - hard]
        weights = torch.ones(k)
        weights[hard:] = (n - hard) / max(1, k - hard)
        rows, order = torch.cat([places[:hard], places[drawn]]).sort()
        self.weights = weights[order]
        return rows


class Reweight(Algorithm):
    """Turn the loss into the mean over the whole batch that the kept rows stand for."""

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="reweight",
        description="weigh each kept row by how many it stands for",
        events=(Event.AFTER_LOSS,),
        writes=("loss",),
    )

    def __init__(self, selector: KeepTheHardest) -> None:
        self.selector = selector

    def match(self, event: Event, state: State) -> bool:
        """AFTER_LOSS in steps on kept rows."""
        return event is Event.AFTER_LOSS and self.selector.weights is not None

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        """Replace the loss; the engine reduces it like any other."""
        weights, self.selector.weights = self.selector.weights, None
        assert weights is not None
        losses = F.cross_entropy(state.outputs, state.batch[1], reduction="none")
        state.loss = (losses * weights).sum() / weights.sum()


class ChangeKeep(Callback):
    """Move `keep` from `first` at the start of training to `last` at its end, in steps of a sixteenth."""

    def __init__(self, algorithm: SelectiveBackprop, first: float, last: float) -> None:
        self.algorithm, self.first, self.last = algorithm, first, last

    def batch_start(self, state: State, logger: Logger) -> None:
        """Set it for the next batch."""
        elapsed = state.get_elapsed_duration()
        assert elapsed is not None
        self.algorithm.keep = round(16 * (self.first + (self.last - self.first) * elapsed.value)) / 16


class ForgetAtStart(Callback):
    """Empty the table when selection starts: a cold start."""

    def __init__(self, algorithm: SelectiveBackprop) -> None:
        self.algorithm, self.is_done = algorithm, False

    def batch_end(self, state: State, logger: Logger) -> None:
        """Empty it after the last step before the start."""
        elapsed = state.get_elapsed_duration()
        assert elapsed is not None
        if not self.is_done and elapsed.value >= self.algorithm.start:
            self.is_done = True
            self.algorithm.load_state_dict({**self.algorithm.state_dict(), "table": torch.empty(0)})
