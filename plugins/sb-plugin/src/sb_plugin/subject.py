"""What is scored in one run, and how: its model, loss and batches, as State says them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from engine_core import Objective, State
from engine_core.arguments import check_taken, item_at
from engine_core.batch import BatchKey, get_item
from engine_core.errors import ArgumentError, EngineError
from engine_core.objective import autocast_of, check_objective, row_losses

from .scoring import Manner, leaving_no_trace, no_autocast, score

__all__ = ["Subject"]

T = TypeVar("T")


class Subject:
    """The model and the loss of one run; never kept for the next one.

    A model's own loss is that of the model that is there when this is created, at INIT, before anything wraps it.

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
        self._bare = state.model
        self._keys = input_key, target_key
        self.precision = state.precision
        self.device = _device_of(state)
        self.manner = Manner(scale_factor, bn, _autocast(precision, state.precision, self.device), input_key)

    def is_of(self, state: State) -> bool:
        """Is this what is scored in the run of `state`?"""
        return self._state() is state

    @property
    def state(self) -> State:
        """That of the run."""
        state = self._state()
        if state is None:
            raise EngineError("selective_backprop belongs to a run that no longer exists")
        return state

    @property
    def objective(self) -> Objective:
        """That of the run; where it says nothing but a loss function, the keys say what model and loss get."""
        objective = self.state.objective
        return objective if self._keys == (0, 1) or _says(self.state) else _AtKeys(objective, *self._keys)

    @property
    def _holder(self) -> Any:
        """The model that has the loss, if a model has it: not what a loop has wrapped around it."""
        model = self.state.model
        return model if callable(getattr(model, "loss", None)) else self._bare

    def count(self, batch: Any) -> int:
        """Return the number of rows; of a placeholder 1."""
        return self.state.batches.rows(batch)

    def take(self, batch: Any, rows: torch.Tensor) -> Any:
        """Return the rows at these positions (k,)."""
        return self.state.batches.part(batch, rows)

    def check_rows(self, batch: Any) -> None:
        """Raise if there are no rows, or none can be taken."""
        if not self.count(batch):
            raise ArgumentError("the first batch has no rows to choose from: leave empty batches out of the loader")
        self.take(batch, torch.zeros(1, dtype=torch.long))

    def check_keys(self, *, scales: bool, logs: bool) -> None:
        """Raise if a key that is used, or was given, contradicts the objective."""
        state = self.state
        if "loss_fn" in state.loop.offers.writes:  # else a step of the user's own takes the items
            if scales or self._keys[0] != 0:
                check_taken(state, "input_key", self._keys[0], "inputs")
            if logs or self._keys[1] != 1:
                check_taken(state, "target_key", self._keys[1], "targets")

    def check_loss(self, batch: Any) -> None:
        """Raise if there is no loss, or none for each row; run nothing."""
        check_objective(self.objective, self._holder)
        self.objective.check_row_losses(self._holder)
        if not _says(self.state):
            for name, key in zip(("input_key", "target_key"), self._keys, strict=True):
                item_at(batch, name, key)

    def is_given(self, item: object, batch: Any) -> bool:
        """Is this, by identity, what the model or its loss function gets of a batch?"""
        objective = self.objective
        is_known = type(objective) in (Objective, _AtKeys) and objective.loss_fn is not None
        return is_known and (item is objective.inputs_of(batch) or item is objective.targets_of(batch))

    def score(self, batch: Any, seed: int, *, at_full_size: bool = False) -> tuple[torch.Tensor, bool]:
        """Return the loss of each row (n,) by a forward without gradients, and whether it took the input as scaled.

        Args:
            at_full_size: give the model the input as the training step gets it.
        """
        manner = replace(self.manner, scale_factor=1) if at_full_size else self.manner
        return score(self.objective, self.state.model, batch, seed, manner, self._holder)

    def untouched(self, block: Callable[[], T], seed: int) -> T:
        """Return what a block returns, whose forwards leave no trace, see `leaving_no_trace`."""
        return leaving_no_trace(block, self.state.model, self.objective, seed, self.manner)

    def losses_of_step(self) -> torch.Tensor:
        """Return the loss of each row (n,) from the outputs of the step, without side effects.

        Others that ask State for them get the same; it can't know of keys, or of the model before it was wrapped.
        """
        state, objective, seed = self.state, self.objective, self.state.timestamp.batch
        if objective is state.objective and self._holder is state.model:
            return leaving_no_trace(state.row_losses, state.model, objective, seed)
        block = partial(row_losses, objective, self._holder, state.outputs, state.batch)
        manner = Manner(autocast=autocast_of(self.precision, self.device))
        return leaving_no_trace(block, state.model, objective, seed, manner)


class _AtKeys(Objective):
    """A loss function in a loop that has no other word for what it and the model get of a batch."""

    def __init__(self, given: Objective, input_key: BatchKey, target_key: BatchKey) -> None:
        super().__init__(given.loss_fn)
        self._keys, self.batches = (input_key, target_key), given.batches

    def inputs_of(self, batch: Any) -> Any:
        """Return what the model gets of a batch."""
        return get_item(batch, self._keys[0])

    def targets_of(self, batch: Any) -> Any:
        """Return what the loss function gets of a batch."""
        return get_item(batch, self._keys[1])

    def forward(self, model: Any, batch: Any) -> Any:
        """Return the model's outputs for a batch."""
        return model(self.inputs_of(batch))


def _says(state: State) -> bool:
    """Does the objective say more than a loss function? Of a step of the user's own it knows where the targets are."""
    objective = state.objective
    is_plain = type(objective) is Objective and objective.loss_fn is not None
    is_pair = (objective.inputs, objective.targets) == (0, 1) or "loss_fn" not in state.loop.offers.writes
    return not (is_plain and is_pair)


def _autocast(precision: str, of_run: str, device: torch.device) -> AbstractContextManager[Any]:
    if precision == "engine":
        return autocast_of(of_run, device)
    return no_autocast(device) if precision == "fp32" else autocast_of("amp_bf16", device)


def _device_of(state: State) -> torch.device:
    if state.device is not None:
        return torch.device(state.device)
    parameter = next(state.model.parameters(), None) if state.model is not None else None
    return torch.device("cpu") if parameter is None else parameter.device
