"""Log the loss of each step and its mean over each epoch, and warn if it is not finite. Knows no loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from ..embed import weight_of
from ..errors import NonFiniteLossWarning, add_note
from ..logger import Logger
from ..losses import LateValue
from ..messages import warn
from ..state import State


class _Reading(NamedTuple):
    step: int
    epoch: int
    loss: Any
    parts: Mapping[str, Any]
    rates: Mapping[str, float]
    is_skipped: bool
    weight: float | torch.Tensor | LateValue
    """How much the loss counts in the epoch's mean, see `weight_of`."""
    is_sum: bool


class LossReader:
    """Reads losses at once on the CPU and one step late elsewhere, so that no step waits for itself."""

    def __init__(self, state: State, logger: Logger, *, late: bool) -> None:
        self._state = state
        self._logger = logger
        self.is_late = late
        self._held: _Reading | None = None
        self.was_finite = True
        self._sum = self._weight = 0.0
        self._loss_fn: Any = None
        self._weigh: Callable[[Any], int | torch.Tensor] | None = None
        self._is_sum = False

    def take(self, loss: torch.Tensor, parts: Mapping[str, torch.Tensor]) -> None:
        """Take the loss of the batch that the clock counts next."""
        logs = self._logger.destinations
        now = self._state.timestamp
        rates = self._rates() if logs else {}
        weight, is_sum = self._weight_of_batch() if logs else (0.0, False)
        skips = self._state.skip_requested
        reading = _Reading(now.batch, now.epoch, loss, parts if logs else {}, rates, skips, weight, is_sum)
        if self.is_late:
            late_weight = LateValue(weight) if isinstance(weight, torch.Tensor) else weight
            late_parts = {name: LateValue(part) for name, part in reading.parts.items()}
            late = reading._replace(loss=LateValue(loss), parts=late_parts, weight=late_weight)
            reading, self._held = self._held, late  # type: ignore[assignment]
        if reading is not None:
            self._read(reading)

    def flush(self) -> None:
        """Read the loss that is held."""
        held, self._held = self._held, None
        if held is not None:
            self._read(held)

    def end_epoch(self) -> None:
        """Log the mean loss of the epoch, over the rows of the batches that were logged and stepped."""
        self.flush()
        if self._weight:
            self._logger.log_metrics({"train/loss_epoch": self._sum / self._weight})
        self._sum = self._weight = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs; nothing may be held."""
        return {"was_finite": self.was_finite, "epoch_loss": [self._sum, self._weight]}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; a checkpoint of an earlier version has no mean."""
        self.was_finite = saved["was_finite"] is not False
        self._sum, self._weight = map(float, saved.get("epoch_loss", (0.0, 0.0)))

    def salvage(self, error: BaseException) -> None:
        """Read the loss that is held although `error` ended training; add a note to it if that fails."""
        try:
            self.flush()
        except Exception as second:  # noqa: BLE001  nothing may replace the first error
            add_note(error, f"the loss of the last batch could not be read: {second}")

    def _read(self, reading: _Reading) -> None:
        value = reading.loss.item()
        was_finite, self.was_finite = self.was_finite, math.isfinite(value)
        if was_finite and not self.was_finite and not reading.is_skipped:  # the callback that skips it says so
            warn(
                f"the training loss is {value} at batch {reading.step} (epoch {reading.epoch}); training continues. "
                "To skip such a batch, stop or roll back instead: callbacks=[('loss_guard', {'policy': 'skip'})]",
                NonFiniteLossWarning,
            )
        if self._logger.destinations:
            parts = {f"train/loss/{name}": part.item() for name, part in reading.parts.items()}
            self._logger.log_metrics({"train/loss": value, **parts, **reading.rates}, reading.step)
        weight = float(reading.weight.item() if isinstance(reading.weight, LateValue) else reading.weight)
        if weight and not reading.is_skipped:
            self._sum += value if reading.is_sum else value * weight
            self._weight += weight

    def _weight_of_batch(self) -> tuple[float | torch.Tensor, bool]:
        """Return by how much the loss of the current batch counts in the epoch's mean, and whether it is a sum."""
        batch = self._state.batch
        if batch is None:
            return 0.0, False
        loss_fn = self._state.loss_fn
        if self._weigh is None or loss_fn is not self._loss_fn:  # asking a loss for its settings is slow
            self._loss_fn, (self._weigh, self._is_sum) = loss_fn, weight_of(loss_fn)
        weight = self._state.loss_weight
        return self._weigh(batch) if weight is None else weight, self._is_sum

    def _rates(self) -> dict[str, float]:
        groups = [group for optimizer in self._state.optimizers for group in optimizer.param_groups]
        return {f"train/lr/{group.get('name', index)}": float(group["lr"]) for index, group in enumerate(groups)}
