"""The training loss over batches: the mean of all, and a smoothed one. Never waits for a running step."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from ..losses import LateValue

KEPT = 0.98
"""How much of the smoothed loss a batch leaves: about the last 50 batches count."""


class LossMeter:
    """Adds up the losses of batches: their sums, and what they count.

    On a GPU a loss is copied while the device works, and read once the copy is there.

    Attributes:
        total, count: sum and count of all losses taken since `restart`.
        is_sum: are the losses sums, which nothing divides?
    """

    def __init__(self) -> None:
        self.total = self.count = 0.0
        self.is_sum = False
        self._smooth, self._batches = 0.0, 0
        self._unusual: float | None = None
        self._late: deque[tuple[LateValue, Any]] = deque()

    def take(self, loss: Any, count: Any) -> None:
        """Take the mean loss of a batch; what is not a number, as a loop of one's own may have it, is passed over.

        Args:
            count: what the mean was divided by: a number, or a tensor on the loss's device; None for a sum.
        """
        try:
            if loss.is_cuda:
                self._take_late(loss, count)
            else:
                self.add(loss.item(), count)
        except (AttributeError, RuntimeError, ValueError):
            if getattr(loss, "numel", int)() == 1:
                raise

    def add(self, value: float, count: Any) -> None:
        """Add the mean loss of a batch, as a number, times what it counts."""
        if count is None:
            self.is_sum = True
            self.total += value
        else:
            if type(count) is not int:
                count = float(count)
            if count:  # of a batch without a target that counts, the loss is NaN
                self.total += value * count
                self.count += count
        if value - value == 0:  # it is finite; cheaper than a call in each step
            self._smooth += (1 - KEPT) * (value - self._smooth)
            self._batches += 1
        else:
            self._smooth, self._batches, self._unusual = 0.0, 0, value

    def flush(self) -> None:
        """Wait for the losses that are still being computed."""
        while self._late:
            self._read()

    def restart(self) -> None:
        """Begin a new mean."""
        self.total, self.count, self.is_sum = 0.0, 0.0, False

    @property
    def mean(self) -> float | None:
        """The sum of all losses by the sum of what they count; the sum alone for sums; None if nothing counted."""
        return self.total if self.is_sum else self.total / self.count if self.count else None

    @property
    def smoothed(self) -> float | None:
        """The exponential mean over batches, without the bias of its start; None before the first batch.

        A loss that is not finite is shown as it is, and the next finite one starts a new mean.
        """
        return self._smooth / (1 - KEPT**self._batches) if self._batches else self._unusual

    def _take_late(self, loss: torch.Tensor, count: Any) -> None:
        if loss.numel() != 1:
            return
        if hasattr(count, "item"):
            count = LateValue(count)
        self._late.append((LateValue(loss), count))  # made last, so that it is there last
        while self._late and self._late[0][0].is_there():
            self._read()

    def _read(self) -> None:
        loss, count = self._late.popleft()
        self.add(loss.item(), count.item() if hasattr(count, "item") else count)
