"""What MixUp and CutMix share as algorithms of the engine: when a batch is mixed, and when it is restored."""

from __future__ import annotations

import sys
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from engine_core import Algorithm, Event, Logger, State
from engine_core.arguments import check_flag, check_key, check_taken, item_at
from engine_core.batch import BatchKey, ItemSwap
from engine_core.errors import EngineError
from engine_core.losses import class_outputs
from engine_core.objective import check_objective, check_seen
from engine_core.randomness import OwnGenerator
from engine_core.trainer import Precision

from .dense import check_classes, check_dense
from .pairings import Draw, check_alpha, draw
from .targets import mix_losses, mix_targets

__all__ = ["EVENTS", "Mixing"]

EVENTS = (
    Event.BEFORE_TRAIN_BATCH,
    Event.BEFORE_FORWARD,
    Event.AFTER_FORWARD,
    Event.BEFORE_LOSS,
    Event.AFTER_LOSS,
    Event.AFTER_TRAIN_BATCH,
)


class _Mix(NamedTuple):
    """How the rows of the current forward are mixed: their partners (N,), and their own share."""

    order: torch.Tensor
    lam: float


class _Paired(NamedTuple):
    """What is kept until AFTER_LOSS if losses are interpolated."""

    targets: Any
    loss_before: Any


class Mixing(Algorithm):
    """Mix the rows of a batch for the forward, and their targets or losses for the loss.

    There is one draw per batch, at BEFORE_TRAIN_BATCH, so all its microbatches and forwards are mixed alike. In a loop
    without that event each forward has its own.
    """

    def __init__(self, alpha: float, interpolate_loss: bool, input_key: BatchKey, target_key: BatchKey) -> None:  # noqa: FBT001
        self.alpha = check_alpha(alpha)
        self.interpolate_loss = check_flag("interpolate_loss", interpolate_loss)
        check_key("input_key", input_key)
        check_key("target_key", target_key)
        self.input_key = input_key
        self.target_key = target_key
        self._generator = OwnGenerator(str(self.metadata.name))
        self._inputs, self._targets = ItemSwap(input_key), ItemSwap(target_key)
        self._draw: Draw | None = None
        self._mix: _Mix | None = None
        self._paired: _Paired | None = None
        self._owed: weakref.ref[State] | None = None
        self._precision: tuple[tuple[str, str], Precision] | None = None

    @abstractmethod
    def check_input(self, rows: Any) -> None:
        """Raise unless these inputs can be mixed."""

    @abstractmethod
    def mix_input(self, state: State, order: torch.Tensor, drawn: Draw) -> tuple[torch.Tensor, float]:
        """Return the inputs in the batch mixed with those of the partners, and a row's own share."""

    def check_target(self, target: Any) -> None:
        """Raise unless one share for the whole row is right for these targets."""

    def match(self, event: Event, state: State) -> bool:
        """Always, at the events of a step."""
        return event in EVENTS

    def validate(self, state: State) -> None:
        """Raise if the inputs can't be mixed, or neither the targets nor the losses can."""
        self.check_input(item_at(state.batch, "input_key", self.input_key))
        target = item_at(state.batch, "target_key", self.target_key)
        self.check_target(target)
        state.batches.rows(state.batch)  # raises if they can't be told
        if "loss_fn" in state.loop.offers.writes:  # else a step of the user calls it
            check_taken(state, "input_key", self.input_key, "inputs")
            check_taken(state, "target_key", self.target_key, "targets")
        if self.interpolate_loss:
            check_objective(state.objective, state.model)
        else:
            check_dense(state.loss_fn, state.objective.name_of_loss(state.model), target)

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Mix at the BEFORE events, restore at the AFTER events."""
        if event is Event.BEFORE_FORWARD:
            self._check_paid(state)
            self._mix_inputs(state)
        elif event is Event.AFTER_FORWARD:
            self._inputs.back(state)
            if self._mix is not None:
                self._owe(state)
        elif event is Event.BEFORE_LOSS:
            self._mix_targets(state)
        elif event is Event.AFTER_LOSS:
            self._end_loss(state)
        elif event is Event.BEFORE_TRAIN_BATCH:
            self._check_paid(state)
            self._mix = None
            self._draw = draw(self.alpha, self._generator.of(state, self))
        else:
            self._mix = self._draw = None
            if _is_unwinding():
                self._owed = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the generator."""
        return self._generator.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the draws of the saved run."""
        self._generator.load_state_dict(state)

    def _owe(self, state: State) -> None:
        """Remember that this run has to mix a loss, unless an exception has ended the forward."""
        self._owed = None if _is_unwinding() else weakref.ref(state)

    def _check_paid(self, state: State) -> None:
        """Raise if a forward of this run was mixed and its loss was not: it trained on the wrong targets."""
        owed, self._owed = self._owed, None
        if owed is not None and owed() is state and not _is_unwinding():
            event = "BEFORE_LOSS" if self._paired is None else "AFTER_LOSS"
            self._paired = None
            raise EngineError(
                f"{self.metadata.name} mixed the inputs of a forward and never saw {event}: the loop has to fire both "
                "pairs, the forward's and the loss's; a loop that continues after an exception has to run each step "
                "in engine.restoring()"
            )

    def _mix_inputs(self, state: State) -> None:
        self._mix = None
        drawn = self._draw or draw(self.alpha, self._generator.of(state, self))
        device = state.batch_get_item(self.input_key).device
        order = drawn.pairing(state.batches.rows(state.batch)).to(device, non_blocking=True)
        mixed, lam = self.mix_input(state, order, drawn)
        self._inputs.put(state, mixed)
        self._mix = _Mix(order, lam)

    def _mix_targets(self, state: State) -> None:
        """Make the targets dense, or keep those of the partners for AFTER_LOSS."""
        self._owed = None
        if self._mix is None:
            return
        order, lam = self._mix
        target = state.batch_get_item(self.target_key)
        if (rows := state.batches.rows(state.batch)) != len(order):
            raise EngineError(f"{self.metadata.name} mixed {len(order)} rows, and the batch of the loss has {rows}")
        paired = state.batches.part_of(state.batch, self.target_key, order)
        if self.interpolate_loss:
            self._paired = _Paired(paired, state.loss)
            state.loss = None  # so that AFTER_LOSS can tell whether a loss was computed
            self._owe(state)
            return
        classes, dtype = None, torch.float32
        if not target.is_floating_point():
            outputs = class_outputs(state.outputs, target)
            check_classes(outputs, target)
            classes, dtype = outputs.shape[1], torch.promote_types(outputs.dtype, dtype)
        self._targets.put(state, mix_targets(target, paired, lam, classes, dtype))

    def _end_loss(self, state: State) -> None:
        """Put the targets back, or interpolate the loss if there is one."""
        self._targets.back(state)
        mix, paired = self._mix, self._paired
        self._mix = self._paired = None
        if mix is None:
            return
        if paired is None:
            self._check_paid(state)
        elif state.loss is None:  # something raised in between
            self._owed, state.loss = None, paired.loss_before
            return
        self._owed = None
        check_seen(state, str(self.metadata.name), counts=paired is None and not state.timestamp.batch)
        if paired is not None:
            second = self._in_precision(state, mix.order.device)(state, paired.targets)
            state.loss = mix_losses(state.loss, second, mix.lam)

    def _in_precision(self, state: State, device: torch.device) -> Callable[[State, Any], Any]:
        made_for = state.precision, device.type
        if self._precision is None or self._precision[0] != made_for:
            self._precision = made_for, Precision(state.precision, device)
        return self._precision[1].wrap(self._loss_of)

    def _loss_of(self, state: State, targets: Any) -> Any:
        """Return the loss of the outputs for other targets."""
        check_objective(state.objective, state.model)
        swap = ItemSwap(self.target_key)
        try:
            swap.put(state, targets)
            return state.objective.given(state.model, state.outputs, state.batch)
        finally:
            swap.back(state)


def _is_unwinding() -> bool:
    """Is an exception being handled, as when the engine unwinds an interrupted step?"""
    return sys.exc_info()[0] is not None
