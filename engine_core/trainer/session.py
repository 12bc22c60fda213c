"""What the loop works with, and what it keeps from one `fit` to the next."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..engine import Engine
from ..errors import EngineError
from ..state import State
from ..time import Interval
from .data import Feed
from .evaluation import run_eval
from .loss_log import LossReader
from .precision import Precision

__all__ = ["Session"]


@dataclass(eq=False)
class Session:
    """What the loop works with, and what it keeps from one `fit` to the next.

    Args:
        schedulers: torch schedulers, each with the interval at which it steps.
        metrics: what an evaluation measures beside the loss.
        feed: begins the epochs of the train loader.
        batches: the loader in mid-epoch, or None between epochs.
        counted_s: until when the clock of training has counted; evaluation puts it forward.
        evaluated_at: the batch count at the latest evaluation.
        awaited: the event at which savers wait for an evaluation that was broken off.
        found: what that evaluation has found, on the loaders that it was through with.
        is_loaded: is this as a checkpoint has left it, so that even at its end an evaluation may be still to come?
        is_unproven: is the state of optimizers and schedulers from a checkpoint, and no step was made with it?
        has_gradients: is this AFTER_TRAIN_BATCH, where the gradients are there and the optimizers have not stepped?
        begins_anew: did an exception end the epoch's pair for some algorithm, so that going on has to begin it again?
    """

    engine: Engine
    state: State
    precision: Precision
    device: torch.device
    readings: LossReader
    schedulers: Sequence[tuple[Any, Interval]]
    eval_interval: Interval
    metrics: Mapping[str, Any]
    feed: Feed
    microbatch_size: int | None = None
    grad_clip_norm: float | None = None
    batches: Iterator[Any] | None = field(default=None, init=False)
    counted_s: float = field(default=0.0, init=False)
    evaluated_at: int | None = field(default=None, init=False)
    awaited: str | None = field(default=None, init=False)
    found: dict[str, float] = field(default_factory=dict, init=False)
    is_loaded: bool = field(default=False, init=False)
    is_unproven: bool = field(default=False, init=False)
    is_fitting: bool = field(default=False, init=False)
    is_evaluating: bool = field(default=False, init=False)
    has_built_graph: bool = field(default=False, init=False)
    has_gradients: bool = field(default=False, init=False)
    begins_anew: bool = field(default=False, init=False)

    def evaluate(
        self, loaders: Mapping[str, Iterable[Any]], begun: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Evaluate on loaders by label; the clock of training stands still.

        Args:
            begun: see `run_eval`.
        """
        if self.is_evaluating:
            raise EngineError("an evaluation runs already: eval() can't be called from one of its own events")
        started_s = time.perf_counter()
        self.is_evaluating = True
        try:
            return run_eval(self.engine, loaders, self.metrics, self.precision, self.device, begun)
        finally:
            self.is_evaluating = False
            self.counted_s += time.perf_counter() - started_s
