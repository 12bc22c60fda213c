"""The moments of an evaluation within a training loop, one method for each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from ..engine import Engine
from ..errors import ArgumentError
from ..event import Event
from ..state import State, length_of
from ..time import Timestamp
from .status import Phase, RunStatus

_CURRENT = ("batch", "outputs", "loss", "dataloader", "dataloader_label", "dataloader_len")
"""The fields of State that are those of training again after an evaluation."""
_EVENTS = [event for event in Event if event.is_eval]


class EvaluationMoments:
    """Fires the events of evaluations, and lets the training clock stand still meanwhile.

    A loop that shows only the beginning and the end of an evaluation calls `eval_start` and `eval_end`.
    """

    engine: Engine
    state: State
    status: RunStatus
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
        try:
            rows = state.batches.rows(state.batch)
        except ArgumentError:  # nothing here needs them
            rows = 0
        state.eval_timestamp = state.eval_timestamp.to_next_batch(rows)
        self.engine.run_event(Event.EVAL_BATCH_END)

    def eval_end(self, metrics: Mapping[str, float]) -> None:
        """EVAL_END, with the results under the names that the loop has for them."""
        self.state.metrics = {**self.state.metrics, **metrics}
        try:
            self.engine.run_event(Event.EVAL_END)
        finally:
            self._end_evaluation()

    @contextmanager
    def evaluating(self, model: torch.nn.Module, label: str, loader: Any = None) -> Iterator[dict[str, Any]]:
        """Be in an evaluation within the block: the model in eval mode, and no gradients; modes are restored.

        The results that the block puts into the dict become metrics, as `<label>/<name>`. Its other moments are not
        called here.
        """
        results, phase = dict[str, Any](), self.status.phase
        modes = [(module, module.training) for module in model.modules()]
        try:
            self.status.phase = Phase.EVALUATING
            model.eval()
            with torch.no_grad():
                self.eval_start(label, loader)
                yield results
                self.eval_end({f"{label}/{name}": float(value) for name, value in results.items()})
        except BaseException as error:
            self.undo_evaluation(error)
            raise
        finally:
            self.status.phase = phase
            for module, is_training in modes:
                module.training = is_training

    def undo_evaluation(self, error: BaseException) -> None:
        """`error` ended an evaluation: let algorithms undo what they did in it; training may go on."""
        self.engine.undo(error, _EVENTS)
        self._end_evaluation()

    def _end_evaluation(self) -> None:
        """Let State show training again; without an evaluation that began, nothing."""
        if self._kept:
            for name, value in self._kept.items():
                setattr(self.state, name, value)
            self._kept = {}
            self.counted_s += time.perf_counter() - self._evaluates_since_s
