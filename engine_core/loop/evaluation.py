"""The moments of an evaluation, one method for each, and what leaves a model and training as they were before it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ..errors import ArgumentError
from ..event import Event
from ..randomness import GlobalGenerators
from ..state import length_of
from ..time import Timestamp
from .status import Phase
from .step import StepMoments

_CURRENT = (
    *("batch", "is_placeholder", "between_batches", "outputs", "loss"),
    *("dataloader", "dataloader_label", "dataloader_len"),
)
"""The fields of State that are those of training again after an evaluation."""
_EVENTS = [event for event in Event if event.is_eval]


class EvaluationMoments(StepMoments):
    """Fires the events of evaluations, and lets the training clock stand still meanwhile.

    A loop that shows only the beginning and the end of an evaluation calls `eval_start` and `eval_end`.
    """

    _back_to_training: Callable[[], None] | None = None

    def eval_start(self, label: str, loader: Any = None) -> None:
        """EVAL_START: the model is in eval mode, and nothing was evaluated."""
        state, self._back_to_training = self.state, self._keep_training()
        state.between_batches = False
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

    def eval_batch_end(self, loss: Any = None, *, samples: int | None = None, seconds: float = 0.0) -> None:
        """EVAL_BATCH_END: the loss is computed, if there is one, and the metrics have seen the batch.

        Args:
            samples: rows of the batch on all ranks, if not those of State's batch.
            seconds: time of the batch, if it is known.
        """
        state = self.state
        state.loss = loss
        if samples is None:
            try:
                samples = state.batches.rows(state.batch)
            except ArgumentError:  # nothing here needs them
                samples = 0
        state.eval_timestamp = state.eval_timestamp.to_next_batch(samples, 0, seconds)
        self.engine.run_event(Event.EVAL_BATCH_END)

    def eval_end(self, metrics: Mapping[str, float]) -> None:
        """EVAL_END, with the results under the names that the loop has for them."""
        self.state.metrics = {**self.state.metrics, **metrics}
        self.engine.run_event(Event.EVAL_END)
        self._end_evaluation()

    @contextmanager
    def evaluating(self, model: torch.nn.Module, label: str, loader: Any = None) -> Iterator[dict[str, Any]]:
        """Be in an evaluation within the block: the model in eval mode, and no gradients; modes are restored.

        The results that the block puts into the dict become metrics, as `<label>/<name>`. Its other moments are not
        called here.
        """
        results = dict[str, Any]()
        with self.evaluations(model=model):
            self.eval_start(label, loader)
            yield results
            self.eval_end({f"{label}/{name}": float(value) for name, value in results.items()})

    @contextmanager
    def evaluations(
        self,
        *,
        model: torch.nn.Module | None = None,
        device: torch.device | None = None,
        phase: Phase = Phase.EVALUATING,
    ) -> Iterator[Callable[[], AbstractContextManager[None]]]:
        """Be in any number of evaluations within the block: the model in eval mode, and no gradients; then all is back.

        If the block raises, algorithms undo what they began in it. Yield a context for blocks inside of this one that
        are the caller's: grad mode and, with a device, the global generators are as outside.

        Args:
            model: if it is not State's, as where that is wrapped.
            device: put the global generators back too, with that of this device.
            phase: what the run is doing meanwhile.
        """
        back_to_training, former = self._keep_training(), self.status.phase
        own: Any = self.state.model if model is None else model
        try:
            self.status.phase = phase
            with inferring(own, device) as outside, self.engine.restoring():
                yield outside
        finally:
            self._back_to_training = None
            back_to_training()
            self.status.phase = former

    def undo_evaluation(self, error: BaseException) -> None:
        """`error` ended an evaluation: let algorithms undo what they did in it; training may go on."""
        self.engine.undo(error, _EVENTS)
        self._end_evaluation()

    def _end_evaluation(self) -> None:
        """Let State show training again; without an evaluation that began, nothing."""
        if self._back_to_training is not None:
            self._back_to_training()
            self._back_to_training = None

    def _keep_training(self) -> Callable[[], None]:
        """Return a function that puts back what State shows of training, and lets its clock go on from here."""
        state, kept = self.state, {name: getattr(self.state, name) for name in _CURRENT}
        uncounted_s = time.perf_counter() - self.counted_s

        def back_to_training() -> None:
            for name, value in kept.items():
                setattr(state, name, value)
            self.counted_s = time.perf_counter() - uncounted_s

        return back_to_training


@contextmanager
def inferring(
    model: torch.nn.Module, device: torch.device | None = None
) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Have the model in eval mode and torch without gradients within the block, see `EvaluationMoments.evaluations`."""
    modes = [(module, module.training) for module in model.modules()]
    put_back = _keep_globals(device)

    @contextmanager
    def outside() -> Iterator[None]:
        nonlocal put_back
        come_back = _keep_globals(device)
        put_back()
        try:
            yield
        finally:
            put_back = _keep_globals(device)
            come_back()

    try:
        model.eval()
        torch.set_grad_enabled(False)
        yield outside
    finally:
        put_back()
        for module, is_training in modes:
            module.training = is_training


def _keep_globals(device: torch.device | None) -> Callable[[], None]:
    """Return a function that puts back torch's grad mode and, with a device, the global generators."""
    records, generators = torch.is_grad_enabled(), None if device is None else GlobalGenerators.capture(device)

    def put_back() -> None:
        torch.set_grad_enabled(records)
        if generators is not None:
            generators.restore()

    return put_back


def keep_modules(
    model: torch.nn.Module, tensors: Iterable[torch.Tensor] = (), *, attributes: bool = True
) -> Callable[[], None]:
    """Return a function that puts back modules' buffers, attributes and values of tensors, also those replaced."""
    own = [(m, dict(vars(m)) if attributes else None, dict(m._buffers)) for m in model.modules()]  # noqa: SLF001
    values = [(tensor, tensor.detach().clone()) for tensor in tensors if not is_lazy(tensor)]

    def put_back() -> None:
        for module, others, buffers in own:
            if others is not None:
                vars(module).clear()
                vars(module).update(others)
            module._buffers.clear()  # noqa: SLF001
            module._buffers.update(buffers)  # noqa: SLF001
        with torch.no_grad():
            for tensor, former in values:
                is_expanded = tensor.layout is torch.strided and 0 in tensor.stride()
                if tensor.shape != former.shape:  # it was resized in place
                    tensor.data = former
                elif not (is_expanded and torch.equal(tensor, former)):  # an expanded one can't be written to
                    tensor.copy_(former)

    return put_back


def without_trace(model: Any, device: torch.device, block: Callable[[], Any]) -> Any:
    """Return what a function returns, run eagerly, in eval mode and without gradients; all is put back."""
    put_back = keep_modules(model, model.buffers())
    set_stance = getattr(torch.compiler, "set_stance", None)  # torch before 2.6 has none
    try:
        with inferring(model, device):
            if set_stance is None or "torch._dynamo" not in sys.modules:  # nothing is compiled
                return block()
            with set_stance("force_eager"):  # nothing shall be compiled for the block's shapes
                return block()
    finally:
        put_back()
