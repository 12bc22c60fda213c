"""The training loss as it is shown: smoothed over batches, and its mean. Never waits for a running step."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from ..losses import LateValue

KEPT = 0.98
"""How much of the smoothed loss a batch leaves: about the last 50 batches count."""


class RunningLoss:
    """Takes the loss of each batch. On a GPU a loss is copied while the device works, and read once the copy is there.

    Attributes:
        is_sum: is a batch's loss a sum, which counts as it is, not a mean?
        total: the sum of all losses taken since `restart`, each times its weight unless it is a sum.
        weight: the sum of their weights.
    """

    def __init__(self) -> None:
        self.is_sum = False
        self.total = self.weight = 0.0
        self._smooth, self._count = 0.0, 0
        self._unusual: float | None = None
        self._late: deque[tuple[LateValue, Any]] = deque()

    def take(self, loss: Any, weight: Any) -> None:
        """Take the loss of a batch; what is not a number, as a loop of one's own may have it, is passed over.

        Args:
            weight: how much it counts in the mean: a number, or a tensor on the loss's device.
        """
        try:
            if loss.is_cuda:
                self._take_late(loss, weight)
            else:
                self._add(loss.item(), weight)
        except (AttributeError, RuntimeError, ValueError):
            if getattr(loss, "numel", int)() == 1:
                raise

    def flush(self) -> None:
        """Wait for the losses that are still being computed."""
        while self._late:
            self._read()

    def restart(self) -> None:
        """Begin a new mean."""
        self.total = self.weight = 0.0

    @property
    def smoothed(self) -> float | None:
        """The exponential mean over batches, without the bias of its start; None before the first batch.

        A loss that is not finite is shown as it is, and the next finite one starts a new mean.
        """
        return self._smooth / (1 - KEPT**self._count) if self._count else self._unusual

    def _take_late(self, loss: torch.Tensor, weight: Any) -> None:
        from ..losses import LateValue  # noqa: PLC0415  torch is there if a loss is; nothing else here needs it

        if loss.numel() != 1:
            return
        if not isinstance(weight, (int, float)):
            weight = LateValue(weight)
        self._late.append((LateValue(loss), weight))  # made last, so that it is there last
        while self._late and self._late[0][0].is_there():
            self._read()

    def _read(self) -> None:
        loss, weight = self._late.popleft()
        self._add(loss.item(), weight if isinstance(weight, (int, float)) else weight.item())

    def _add(self, value: float, weight: Any) -> None:
        if type(weight) is not int:
            weight = float(weight)
        if weight:  # of a batch without a target that counts, the loss is NaN
            self.total += value if self.is_sum else value * weight
            self.weight += weight
        if value - value == 0:  # it is finite; cheaper than a call in each step
            self._smooth += (1 - KEPT) * (value - self._smooth)
            self._count += 1
        else:
            self._smooth, self._count, self._unusual = 0.0, 0, value
