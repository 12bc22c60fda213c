"""Selective Backprop as an algorithm of the engine: glue between State and the functions of this package."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.arguments import check_key
from engine_core.batch import count_rows, take_rows
from engine_core.errors import ArgumentError
from engine_core.items import BatchKey
from engine_core.randomness import OwnGenerator

from .arguments import check_interrupt, check_interval, check_keep, check_scale_factor
from .losses import per_sample
from .schedule import should_selective_backprop
from .scoring import Objective, autocast_of, score
from .select import draw_rows, number_kept
from .untouched import fresh_seed

__all__ = ["SelectiveBackprop"]

_NAME = "selective_backprop"


@dataclass
class _Run:
    """What belongs to one run: taken from its State at INIT, never kept for the next one."""

    state: weakref.ref[State]
    loss: Any
    whole_batch: bool
    autocast: AbstractContextManager[Any]
    objective: Objective | None = None
    takes_scaled: bool = True


class SelectiveBackprop(Algorithm):
    """Train on the hard rows of each batch.

    Source: Jiang et al. 2019, Accelerating Deep Learning by Focusing on the Biggest Losers, arXiv 1910.00762. In
    steps within `[start, end)` of the training, one forward without gradients scores the rows of the batch, and the
    step trains on `max(1, floor(keep * n))` of them, drawn by the rank of their loss. See `select_using_loss`.

    Args:
        start, end: the interval, as fractions of the whole training.
        keep: the fraction of rows that is kept, in (0, 1].
        scale_factor: the factor for the spatial size of the input while scoring, in (0, 1].
        interrupt: every how many batches an ordinary step comes in between; 0: never.
        input_key, target_key: where inputs and targets are in a batch. A model with its own loss gets the whole
            batch; then `input_key` says what `scale_factor` scales and `target_key` has no part.

    Example:
        >>> SelectiveBackprop(start=0.0, end=1.0, keep=0.25, scale_factor=1, interrupt=0).keep
        0.25
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name=_NAME,
        description="train on the hard rows of each batch",
        events=(Event.INIT, Event.AFTER_DATALOADER),
        tags=("batch_pruning",),
        writes=("batch",),
    )

    def __init__(  # noqa: PLR0913, PLR0917  the reference has these, in this order
        self,
        start: float = 0.5,
        end: float = 0.9,
        keep: float = 0.5,
        scale_factor: float = 0.5,
        interrupt: int = 2,
        input_key: BatchKey = 0,
        target_key: BatchKey = 1,
    ) -> None:
        self.start, self.end = check_interval(start, end)
        self.keep = check_keep(keep)
        self.scale_factor = check_scale_factor(scale_factor)
        self.interrupt = check_interrupt(interrupt)
        check_key("input_key", input_key)
        check_key("target_key", target_key)
        self.input_key = input_key
        self.target_key = target_key
        self._generator = OwnGenerator(_NAME)
        self._run: _Run | None = None

    def match(self, event: Event, state: State) -> bool:
        """INIT, to take the loss before the model is wrapped; AFTER_DATALOADER in selective steps."""
        if event is Event.INIT:
            return True
        if event is not Event.AFTER_DATALOADER or self.keep == 1:
            return False
        elapsed = state.get_elapsed_duration()
        done = 0.0 if elapsed is None else elapsed.value
        return should_selective_backprop(done, state.timestamp.batch_in_epoch, self.start, self.end, self.interrupt)

    def validate(self, state: State) -> None:
        """Raise if the loss, the length of the training or the batch make selection impossible."""
        if self.keep == 1:
            return
        self._objective(self._run_of(state)).check(state.batch, self.scale_factor)
        if state.get_elapsed_duration() is None and (self.start, self.end) != (0, 1):
            raise ArgumentError(
                f"max_duration is not known, so start={self.start} and end={self.end} have no place in the training: "
                "set max_duration, or start=0 and end=1 to select at any time"
            )

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        """At INIT take the loss of the model; afterwards replace the batch by its hard rows."""
        if event is Event.INIT:
            self._begin(state)
            return
        run = self._run_of(state)
        objective = self._objective(run)
        n = count_rows(objective.received(state.batch))
        k = number_kept(n, self.keep)
        if k == n:
            return
        factor = self.scale_factor if run.takes_scaled else 1
        model: Any = state.model
        generator = self._generator.of(state, self)
        losses, took = score(objective, model, state.batch, fresh_seed(generator), factor, run.autocast)
        run.takes_scaled = run.takes_scaled and took
        rows = draw_rows(losses, k, self.keep, generator)
        state.batch = take_rows(state.batch, n, rows)
        if logger.destinations:
            logger.log_metrics(_summary(losses, rows))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the generator."""
        return self._generator.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on drawing where the saved run stood."""
        self._generator.load_state_dict(state)

    def _run_of(self, state: State) -> _Run:
        """Return what belongs to the run of `state`, also where INIT was not fired."""
        run = self._run
        return run if run is not None and run.state() is state else self._begin(state)

    def _begin(self, state: State) -> _Run:
        whole_batch = state.loss_fn is None
        loss = getattr(state.model, "loss", None) if whole_batch else state.loss_fn
        autocast = autocast_of(state.precision, _device_of(state))
        self._run = _Run(weakref.ref(state), loss, whole_batch, autocast)
        self._generator.of(state, self)  # whose state is saved from now on
        return self._run

    def _objective(self, run: _Run) -> Objective:
        if run.objective is None:
            if run.loss is None:
                raise ArgumentError(
                    "selective_backprop finds no loss: set loss_fn, or give the model a method "
                    "loss(outputs, batch, reduction='mean')"
                )
            run.objective = Objective(per_sample(run.loss), self.input_key, self.target_key, run.whole_batch)
        return run.objective


def _device_of(state: State) -> torch.device:
    if state.device is not None:
        return torch.device(state.device)
    parameter = next(state.model.parameters(), None) if state.model is not None else None
    return torch.device("cpu") if parameter is None else parameter.device


def _summary(losses: torch.Tensor, rows: torch.Tensor) -> dict[str, float]:
    """Return what is logged of a step; one transfer from the device."""
    finite = losses.isfinite()
    zeroed = losses.where(finite, 0.0)
    total, of_kept = torch.stack([zeroed, finite.float()]), torch.stack([zeroed[rows], finite[rows].float()])
    sums = torch.cat([total.sum(1), of_kept.sum(1)]).tolist()
    return {
        f"{_NAME}/kept": rows.shape[0],
        f"{_NAME}/loss_mean": sums[0] / sums[1] if sums[1] else math.nan,
        f"{_NAME}/kept_loss_mean": sums[2] / sums[3] if sums[3] else math.nan,
        f"{_NAME}/nonfinite": losses.shape[0] - int(sums[1]),
    }
