"""The moments of a step of a training loop, from the batch that is asked for to the checkpoint after it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..engine import Engine
from ..errors import ArgumentError, EngineError, UncountedRowsWarning
from ..event import Event
from ..logger import Logger
from ..messages import join_words, warn
from ..needs import Offers
from ..passes import PassArgument
from ..state import State
from ..time import Interval, Time, Timestamp, TimeUnit, is_length
from .status import Phase, RunStatus

OF_A_MICROBATCH = (Event.BEFORE_FORWARD, Event.BEFORE_LOSS, Event.BEFORE_BACKWARD)
_PLAIN = (tuple, list)
"""Batches in which no item is known to tell the number of tokens."""
OF_A_STEP = (Event.BATCH_START, Event.BEFORE_TRAIN_BATCH, *OF_A_MICROBATCH)


def backward_with_first_graph(loss: Any, gradient: Any) -> None:
    """Silence torch's first warning, which is about gradients that are never reset: the loop resets them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using backward.. with create_graph=True", UserWarning)
        loss.backward(gradient, create_graph=True)


class StepMoments:
    """Fires the events of a step, keeps the clock, and guards the closure.

    Even an unheard event costs something in a tiny step: of a step's events only those that are heard are fired. For
    the attributes see `Loop`.
    """

    samples: int = 0
    tokens: int = 0
    needs_rows: bool = False
    lengths: Mapping[str, Any] = {}
    _counts_tokens: bool = False
    _in_rows: str = ""
    _in_tokens: str = ""
    _has_told: bool = False
    _rates: Sequence[tuple[dict[str, Any], Any]] = ()

    def __init__(
        self,
        state: State,
        offers: Offers,
        *,
        logger: Logger | None = None,
        algorithm_passes: PassArgument | None = None,
    ) -> None:
        state.loop.offers = offers
        self.state = state
        self.engine = Engine(state, Logger() if logger is None else logger, algorithm_passes)
        self.fire = self.engine.run_event
        self.status = RunStatus(state)
        self.counted_s = time.perf_counter()
        self._unheard = self.engine.unheard
        self._closure: Callable[[], Any] | None = None

    def before_dataloader(self) -> None:
        """BEFORE_DATALOADER, before a batch is asked for."""
        if "before_dataloader" not in self._unheard:
            self.state.between_batches = True
            self.fire("before_dataloader")
            self.state.between_batches = False

    def exhausted(self) -> None:
        """The loader has no further batch in this epoch."""
        self.engine.run_marker_only_event("after_dataloader")

    def take(self, batch: Any, loaded: Any = None) -> Any:
        """Count a batch as loaded, then AFTER_DATALOADER; return the batch.

        Args:
            loaded: the batch before it was moved to a device. Without it, an attention mask on a device is added up
                only if a length is in tokens, since that waits for the device.

        Raises:
            ArgumentError: (a ValueError) if a length is in rows or tokens that can't be counted, or the loop cuts
                batches whose rows can't; with what to write.
        """
        state = self.state
        given = batch if loaded is None else loaded
        try:  # counted as loaded: an algorithm may drop rows
            self.samples += state.batches.rows(given)
        except ArgumentError as refusal:
            self._pass_over(refusal)
        if self._counts_tokens or type(given) not in _PLAIN:
            self.tokens += self._tokens_of(given)
        state.batch = batch
        "after_dataloader" in self._unheard or self.fire("after_dataloader")
        return state.batch

    def begin_step(self, clear: Callable[[], object] | None = None) -> None:
        """BATCH_START, then `clear`, which resets the gradients, then BEFORE_TRAIN_BATCH."""
        unheard = self._unheard
        "batch_start" in unheard or self.fire("batch_start")
        if clear is not None:
            clear()
        "before_train_batch" in unheard or self.fire("before_train_batch")

    def begin_forward(self, batch: Any) -> Any:
        """BEFORE_FORWARD of a batch or a microbatch; return what the model gets."""
        state = self.state
        state.batch = batch
        "before_forward" in self._unheard or self.fire("before_forward")
        return state.batch

    def end_forward(self, outputs: Any) -> Any:
        """AFTER_FORWARD; return the outputs for the loss."""
        state = self.state
        state.outputs = outputs
        "after_forward" in self._unheard or self.fire("after_forward")
        return state.outputs

    def begin_loss(self) -> None:
        """BEFORE_LOSS."""
        "before_loss" in self._unheard or self.fire("before_loss")

    def end_loss(self, loss: Any) -> Any:
        """AFTER_LOSS; return the loss, of whatever form the loss function has given it."""
        state = self.state
        state.loss = loss
        "after_loss" in self._unheard or self.fire("after_loss")
        return state.loss

    def begin_backward(self, loss: Any) -> Any:
        """BEFORE_BACKWARD; return the scalar to differentiate.

        Args:
            loss: one weighted scalar.
        """
        state = self.state
        state.loss = loss
        "before_backward" in self._unheard or self.fire("before_backward")
        return state.loss

    def end_backward(self) -> None:
        """AFTER_BACKWARD: gradients of this batch or microbatch are there."""
        "after_backward" in self._unheard or self.fire("after_backward")

    def undo_microbatch(self, error: BaseException) -> None:
        """Forward, loss or backward raised `error`: let algorithms undo what they began at BEFORE_FORWARD or later.

        For loops that work on parts of a batch, before the whole one is in `state.batch` again.
        """
        self.engine.name_who_ran(error)
        self.engine.undo(error, OF_A_MICROBATCH)

    def undo_step(self, error: BaseException) -> None:
        """`error` ended the step, and another may follow: its batches count nowhere, its gradients go."""
        self.engine.undo(error, OF_A_STEP)
        self.leave_out_step()
        self.samples, self.tokens, self.state.loop.skip_requested = 0, 0, False

    def end_gradients(self) -> bool:
        """AFTER_TRAIN_BATCH: gradients are there, unscaled and clipped; return whether the optimizers shall step."""
        state = self.state
        if "after_train_batch" not in self._unheard:
            self.status.phase = Phase.STEPPING
            try:
                self.fire("after_train_batch")
            finally:
                self.status.phase = Phase.TRAINING
        if state.loop.schedulers_paused:
            self._rates = [(group, group["lr"]) for each in state.optimizers for group in each.param_groups]
        return not state.loop.skip_requested

    def clear_gradients(self) -> None:
        """Reset the gradients of what the optimizers train, as `begin_step` wants it done."""
        for optimizer in self.state.optimizers:
            optimizer.zero_grad()

    def leave_out_step(self) -> None:
        """Take the gradients away: optimizers that step all the same pass over weights, momentum and decay."""
        self.state.gradient_norm = None
        for optimizer in self.state.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    def end_step(
        self,
        then: Callable[[Timestamp, Timestamp], object] | None = None,
        *,
        samples: int | None = None,
        tokens: int | None = None,
        seconds: float | None = None,
    ) -> bool:
        """Count the batch, then BATCH_END; return whether training shall end here.

        Where schedulers rest, learning rates are as they were at `end_gradients`, whatever the loop has stepped since.

        Args:
            then: called in between with the clock before and after, to step schedulers. They, callbacks and savers see
                the batch as done.
            samples, tokens: those of the step if not those that were taken.
            seconds: time of the step if not that of this process.
        """
        state = self.state
        if self._rates:
            for group, rate in self._rates:
                group["lr"] = rate
            self._rates = ()
        if seconds is None:
            seconds = time.perf_counter() - self.counted_s
        before = state.timestamp
        samples, tokens = self.samples if samples is None else samples, self.tokens if tokens is None else tokens
        state.timestamp = after = before.to_next_batch(samples, tokens, seconds)
        self.counted_s += seconds
        self.samples = self.tokens = 0
        state.loop.skip_requested = False
        if then is not None:
            then(before, after)
        "batch_end" in self._unheard or self.fire("batch_end")
        return state.loop.stop_requested

    def batch_checkpoint(self) -> None:
        """BATCH_CHECKPOINT, after the evaluation that a batch may bring."""
        "batch_checkpoint" in self._unheard or self.fire("batch_checkpoint")

    def _compute_again(self) -> Any:
        """Compute the gradients of the batch again, see `LoopControl.closure`."""
        if self.status.phase is not Phase.STEPPING or self._closure is None:
            raise EngineError(
                f"state.loop.closure can't be called here (precision {self.state.precision}): "
                "it is for AFTER_TRAIN_BATCH"
            )
        self.status.phase = Phase.TRAINING
        try:
            return self._closure()
        finally:
            self.status.phase = Phase.STEPPING

    def _look_at_lengths(self) -> None:
        """Find out which lengths of training are in rows and in tokens, before the first batch of a fit."""
        state = self.state
        found = {"max_duration": state.max_duration, **self.lengths}
        for plugin in (*state.algorithms, *state.callbacks):
            own = getattr(plugin, "__dict__", {})
            found |= {f"{type(plugin).__name__}'s {name.lstrip('_')}": value for name, value in own.items()}
        times = _times(found)
        self._in_rows, self._in_tokens = (
            join_words([f"{name}={str(time)!r}" for name, time in times if time.unit is unit])
            for unit in (TimeUnit.SAMPLE, TimeUnit.TOKEN)
        )
        self._counts_tokens = bool(self._in_tokens) or state.batches.tokens is not None

    def _pass_over(self, refusal: ArgumentError) -> None:
        """Ignore rows that can't be counted, if nothing needs them; a warning says so once in a run."""
        if self.needs_rows:
            raise refusal
        if self._in_rows:
            raise ArgumentError(f"{self._in_rows} is in rows, and {refusal}") from refusal
        if not self._has_told:
            self._has_told = True
            warn(
                "the rows of a batch can't be counted, so the clock counts no samples for it, and it counts 1 in each "
                f"mean over batches: {refusal}",
                UncountedRowsWarning,
            )

    def _tokens_of(self, batch: Any) -> int:
        """Return the tokens of a batch, 0 if nothing counts them; a device is waited for only if a length needs it."""
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        if self.state.is_placeholder or not (self._counts_tokens or getattr(mask, "is_cpu", True)):
            return 0
        tokens = self.state.batches.count_tokens(batch)
        if tokens is None and self._in_tokens:
            raise ArgumentError(
                f"{self._in_tokens} is in tokens, and nothing counts those of a batch of type {type(batch).__name__}: "
                "say Batches(tokens=...), with a function that returns the number of tokens of a batch"
            )
        return tokens or 0


def _times(found: Mapping[str, Any]) -> list[tuple[str, Time]]:
    """Return the lengths among some values."""
    values = {name: value.length if isinstance(value, Interval) else value for name, value in found.items()}
    times = list[tuple[str, Time]]()
    for name, value in values.items():
        try:
            times += [(name, Time(value))] if is_length(value) else []
        except ArgumentError:  # nearly a length, and not meant as one
            continue
    return times
