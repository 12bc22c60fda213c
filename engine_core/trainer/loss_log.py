"""Log the loss of each step and its mean over each epoch, and warn if it is not finite. Knows no loop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from ..errors import NonFiniteLossWarning, add_note
from ..logger import Logger
from ..losses import LateValue
from ..messages import warn
from ..objective import LossMeter
from ..state import State


class _Reading(NamedTuple):
    step: int
    epoch: int
    loss: Any
    parts: Mapping[str, Any]
    rates: Mapping[str, float]
    is_skipped: bool
    count: Any
    """By what the loss was divided: a number, what has one in `item()`, or None for a sum."""


class LossReader:
    """Reads losses at once on the CPU and one step late elsewhere, so that no step waits for itself."""

    def __init__(self, state: State, logger: Logger, *, late: bool) -> None:
        self._state = state
        self._logger = logger
        self.is_late = late
        self._held: _Reading | None = None
        self.was_finite = True
        self._meter = LossMeter()

    def take(self, loss: torch.Tensor, parts: Mapping[str, torch.Tensor]) -> None:
        """Take the loss of the batch that the clock counts next."""
        logs = self._logger.destinations
        now = self._state.timestamp
        rates = self._rates() if logs else {}
        count = self._state.count_of_loss() if logs or not self.is_late else 1
        skips = self._state.loop.skip_requested
        reading = _Reading(now.batch, now.epoch, loss, parts if logs else {}, rates, skips, count)
        if self.is_late:
            late_count = LateValue(count) if isinstance(count, torch.Tensor) else count
            late_parts = {name: LateValue(part) for name, part in reading.parts.items()}
            late = reading._replace(loss=LateValue(loss), parts=late_parts, count=late_count)
            reading, self._held = self._held, late  # type: ignore[assignment]
        if reading is not None:
            self._read(reading)

    def flush(self) -> None:
        """Read the loss that is held."""
        held, self._held = self._held, None
        if held is not None:
            self._read(held)

    def end_epoch(self) -> None:
        """Log the mean loss of the epoch, over what counted in the batches that were logged and stepped."""
        self.flush()
        if (mean := self._meter.mean) is not None:
            self._logger.log_metrics({"train/loss_epoch": mean})
        self._meter.restart()

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs; nothing may be held."""
        meter = self._meter
        return {"was_finite": self.was_finite, "epoch_loss": [meter.total, meter.count], "is_sum": meter.is_sum}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; a checkpoint of an earlier version has no mean."""
        self.was_finite = saved["was_finite"] is not False
        self._meter.total, self._meter.count = map(float, saved.get("epoch_loss", (0.0, 0.0)))
        self._meter.is_sum = saved.get("is_sum") is True

    def salvage(self, error: BaseException) -> None:
        """Read the loss that is held although `error` ended training; add a note to it if that fails."""
        try:
            self.flush()
        except Exception as second:  # noqa: BLE001  nothing may replace the first error
            add_note(error, f"the loss of the last batch could not be read: {second}")

    def _read(self, reading: _Reading) -> None:
        value, count = reading.loss.item(), reading.count
        count = count.item() if hasattr(count, "item") else count
        was_finite, self.was_finite = self.was_finite, math.isfinite(value) or count == 0
        if was_finite and not self.was_finite and not reading.is_skipped:  # the callback that skips it says so
            warn(
                f"the training loss is {value} at batch {reading.step} (epoch {reading.epoch}); training continues. "
                "To skip such a batch, stop or roll back instead: callbacks=[('loss_guard', {'policy': 'skip'})]",
                NonFiniteLossWarning,
            )
        if self._logger.destinations:
            parts = {f"train/loss/{name}": part.item() for name, part in reading.parts.items()}
            self._logger.log_metrics({"train/loss": value, **parts, **reading.rates}, reading.step)
            if not reading.is_skipped:
                self._meter.add(value, count)

    def _rates(self) -> dict[str, float]:
        groups = [group for optimizer in self._state.optimizers for group in optimizer.param_groups]
        return {f"train/lr/{group.get('name', index)}": float(group["lr"]) for index, group in enumerate(groups)}
