"""What is scored in one run, and how: its model and loss, taken from State."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar

import torch

from engine_core import State
from engine_core.batch import BatchKey, count_rows, map_batch
from engine_core.errors import ArgumentError, EngineError

from .losses import check_losses, per_sample, to_fp32
from .scoring import Manner, Objective, autocast_of, leaving_no_trace, no_autocast, score

__all__ = ["Subject"]

T = TypeVar("T")


class Subject:
    """The model and the loss of one run; never kept for the next one.

    The loss is taken when this is created, at INIT, before anything wraps the model.

    Args:
        precision: `"engine"`, that of the run, or `"fp32"` or `"bf16"`, for scoring only.
        bn, scale_factor: see `Manner`.
    """

    def __init__(
        self,
        state: State,
        input_key: BatchKey = 0,
        target_key: BatchKey = 1,
        scale_factor: float = 1,
        bn: str = "frozen",
        precision: str = "engine",
    ) -> None:
        self._state = weakref.ref(state)
        self._whole_batch = state.loss_fn is None
        self._loss = getattr(state.model, "loss", None) if self._whole_batch else state.loss_fn
        self.rows = Objective(None, input_key, target_key, self._whole_batch)
        """Where inputs and targets are, for scorers that need no loss."""
        self._objective: Objective | None = None
        self.precision = state.precision
        self.device = _device_of(state)
        self.manner = Manner(scale_factor, bn, _autocast(precision, state.precision, self.device))

    def is_of(self, state: State) -> bool:
        """Is this what is scored in the run of `state`?"""
        return self._state() is state

    @property
    def model(self) -> Any:
        """The current model."""
        state = self._state()
        if state is None:
            raise EngineError("selective_backprop belongs to a run that no longer exists")
        return state.model

    @property
    def objective(self) -> Objective:
        """The loss of each row, and where to find it in a batch.

        Raises:
            ArgumentError: (a ValueError) if there is no loss, or none per row.
        """
        if self._objective is None:
            if self._loss is None:
                raise ArgumentError(
                    "selective_backprop finds no loss: set loss_fn, or give the model a method "
                    "loss(outputs, batch, reduction='mean')"
                )
            self._objective = replace(self.rows, loss=per_sample(self._loss), holder=self._loss)
        return self._objective

    def score(self, batch: Any, seed: int, *, at_full_size: bool = False) -> tuple[torch.Tensor, bool]:
        """Return the loss of each row (n,) by a forward without gradients, and whether it took the input as scaled.

        Args:
            at_full_size: give the model the input as the training step gets it.
        """
        manner = replace(self.manner, scale_factor=1) if at_full_size else self.manner
        return score(self.objective, self.model, batch, seed, manner)

    def untouched(self, block: Callable[[], T], seed: int) -> T:
        """Return what a block returns, whose forwards leave no trace, see `leaving_no_trace`."""
        return leaving_no_trace(block, self.model, self._loss, seed, self.manner)

    def losses_of(self, outputs: Any, batch: Any, seed: int) -> torch.Tensor:
        """Return the loss of each row (n,) from the outputs of a training forward, without side effects."""
        objective = self.objective

        def losses() -> torch.Tensor:
            received = objective.received(batch)
            given = objective.losses(map_batch(outputs, to_fp32), received, batch)
            return check_losses(given, count_rows(received))

        return leaving_no_trace(losses, self.model, self._loss, seed)


def _autocast(precision: str, of_run: str, device: torch.device) -> AbstractContextManager[Any]:
    if precision == "engine":
        return autocast_of(of_run, device)
    return no_autocast(device) if precision == "fp32" else autocast_of("amp_bf16", device)


def _device_of(state: State) -> torch.device:
    if state.device is not None:
        return torch.device(state.device)
    parameter = next(state.model.parameters(), None) if state.model is not None else None
    return torch.device("cpu") if parameter is None else parameter.device
