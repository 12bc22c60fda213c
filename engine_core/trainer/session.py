"""The state of a Trainer's loop, kept from one `fit` to the next."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..engine import Engine
from ..state import State
from ..time import Interval
from .data import Feed
from .evaluation import run_eval
from .loss_log import LossReader
from .optimizers import Schedule, warn_of_lengths, warn_of_untrained
from .precision import Precision
from .status import Phase, RunStatus


@dataclass(eq=False)
class Session:
    """What the loop works with, and what it keeps from one `fit` to the next.

    Args:
        schedulers: torch schedulers, each with the interval at which it steps, and lengths of this run in its steps.
        batches: the loader in mid-epoch, or None between epochs.
        status: what the run is doing, and what it owes.
        attempt: one more than that of the checkpoint that was resumed, 0 in a fresh run.
        misfits: what was said about schedulers whose length is not the run's when the latest fit began.
        untrained: names of the trainable parameters that were in no optimizer when the latest fit began.
        has_measured: have the metrics seen a batch?
        counted_s: the time up to which the training clock has counted; evaluation moves it forward.
    """

    engine: Engine
    state: State
    precision: Precision
    device: torch.device
    readings: LossReader
    schedulers: Sequence[Schedule]
    eval_interval: Interval
    feed: Feed
    status: RunStatus
    microbatch_size: int | None = None
    grad_clip_norm: float | None = None
    attempt: int = field(default=0, init=False)
    batches: Iterator[Any] | None = field(default=None, init=False)
    counted_s: float = field(default=0.0, init=False)
    misfits: frozenset[str] = field(default=frozenset(), init=False)
    untrained: frozenset[str] = field(default=frozenset(), init=False)
    has_measured: bool = field(default=False, init=False)

    def look_at_schedules(self) -> None:
        """Warn of schedulers whose own length is not the run's, unless the previous fit had the same."""
        self.misfits = warn_of_lengths(self.schedulers, self.misfits, self.state)

    def look_for_untrained(self) -> None:
        """Warn of trainable parameters that are in no optimizer, unless the previous fit had the same."""
        model: Any = self.state.model
        self.untrained = warn_of_untrained(model, self.state.optimizers, self.untrained)

    def evaluate(
        self, loaders: Mapping[str, Iterable[Any]], begun: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Evaluate on loaders by label while the training clock stands still; for `begun` see `run_eval`."""
        self.status.check_can_evaluate()
        started_s, former = time.perf_counter(), self.status.phase
        self.status.phase = Phase.EVALUATING
        try:
            return run_eval(self, loaders, begun)
        finally:
            self.status.phase = former
            self.counted_s += time.perf_counter() - started_s
