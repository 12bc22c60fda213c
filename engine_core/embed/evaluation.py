"""The moments of an evaluation within a training loop, one method for each."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..batch import count_rows
from ..engine import Engine
from ..event import Event
from ..state import State, length_of
from ..time import Timestamp

_CURRENT = ("batch", "outputs", "loss", "dataloader", "dataloader_label", "dataloader_len")
"""The fields of State that are those of training again after an evaluation."""


class EvaluationMoments:
    """Fires the events of evaluations, and lets the training clock stand still meanwhile.

    A loop that shows only the beginning and the end of an evaluation calls `eval_start` and `eval_end`.
    """

    engine: Engine
    state: State
    counted_s: float

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}
        self._evaluates_since_s = 0.0

    def eval_start(self, label: str, loader: Any = None) -> None:
        """EVAL_START: the model is in eval mode, and nothing was evaluated."""
        state = self.state
        self._kept = {name: getattr(state, name) for name in _CURRENT}
        self._evaluates_since_s = time.perf_counter()
        state.dataloader, state.dataloader_label, state.dataloader_len = loader, label, length_of(loader)
        state.eval_timestamp = Timestamp()
        self.engine.run_event(Event.EVAL_START)

    def eval_batch(self, batch: Any) -> Any:
        """EVAL_BATCH_START and EVAL_BEFORE_FORWARD; return what the model gets."""
        self.state.batch = batch
        self.engine.run_event(Event.EVAL_BATCH_START)
        self.engine.run_event(Event.EVAL_BEFORE_FORWARD)
        return self.state.batch

    def eval_outputs(self, outputs: Any) -> Any:
        """EVAL_AFTER_FORWARD; return the outputs for loss and metrics."""
        self.state.outputs = outputs
        self.engine.run_event(Event.EVAL_AFTER_FORWARD)
        return self.state.outputs

    def eval_batch_end(self, loss: Any = None) -> None:
        """EVAL_BATCH_END: the loss is computed, if there is one, and the metrics have seen the batch."""
        state = self.state
        state.loss = loss
        state.eval_timestamp = state.eval_timestamp.to_next_batch(count_rows(state.batch))
        self.engine.run_event(Event.EVAL_BATCH_END)

    def eval_end(self, metrics: Mapping[str, float]) -> None:
        """EVAL_END, with the results under the names that the loop has for them."""
        self.state.metrics = {**self.state.metrics, **metrics}
        try:
            self.engine.run_event(Event.EVAL_END)
        finally:
            self._end_evaluation()

    def _end_evaluation(self) -> None:
        """Let State show training again; without an evaluation that began, nothing."""
        if self._kept:
            for name, value in self._kept.items():
                setattr(self.state, name, value)
            self._kept = {}
            self.counted_s += time.perf_counter() - self._evaluates_since_s
