"""The training loss as it is shown: smoothed over batches, and its mean. Never waits for a running step."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

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
        self._copies: deque[tuple[Any, Any, torch.cuda.Event]] = deque()

    def take(self, loss: Any, weight: Any) -> None:
        """Take the loss of a batch; what is not a number, as a loop of one's own may have it, is passed over.

        Args:
            weight: how much it counts in the mean: a number, or a tensor on the loss's device.
        """
        try:
            if loss.is_cuda:
                self._copy(loss, weight)
            else:
                self._add(loss.item(), weight)
        except (AttributeError, RuntimeError, ValueError):
            if getattr(loss, "numel", int)() == 1:
                raise

    def flush(self) -> None:
        """Wait for the losses that are still being computed."""
        while self._copies:
            self._copies[0][2].synchronize()
            self._read_copy()

    def restart(self) -> None:
        """Begin a new mean."""
        self.total = self.weight = 0.0

    @property
    def smoothed(self) -> float | None:
        """The exponential mean over batches, without the bias of its start; None before the first batch.

        A loss that is not finite is shown as it is, and the next finite one starts a new mean.
        """
        return self._smooth / (1 - KEPT**self._count) if self._count else self._unusual

    def _copy(self, loss: torch.Tensor, weight: Any) -> None:
        import torch  # noqa: PLC0415  it is there if a loss is; nothing else here needs it

        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        if not isinstance(weight, (int, float)):
            weight = weight.to("cpu", non_blocking=True)
        self._copies.append((loss.detach().to("cpu", non_blocking=True), weight, copied))
        copied.record(torch.cuda.current_stream(loss.device))
        while self._copies and self._copies[0][2].query():  # type: ignore[no-untyped-call]
            self._read_copy()

    def _read_copy(self) -> None:
        copy, weight, _ = self._copies.popleft()
        self._add(copy.item(), weight)

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
