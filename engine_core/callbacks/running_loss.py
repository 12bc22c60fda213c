"""The training loss as it is shown: smoothed over batches, and its mean over rows. Never waits for a running step."""

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
        total: the sum of all losses taken since `restart`, each times its rows.
        rows: the rows of these.
    """

    def __init__(self) -> None:
        self.total, self.rows = 0.0, 0
        self._smooth, self._count = 0.0, 0
        self._unusual: float | None = None
        self._copies: deque[tuple[Any, torch.cuda.Event, int]] = deque()

    def take(self, loss: Any, rows: int) -> None:
        """Take the loss of a batch; what is not a number, as a loop of one's own may have it, is passed over."""
        try:
            if loss.is_cuda:
                self._copy(loss, rows)
            else:
                self._add(loss.item(), rows)
        except (AttributeError, RuntimeError, ValueError):
            if getattr(loss, "numel", int)() == 1:
                raise

    def flush(self) -> None:
        """Wait for the losses that are still being computed."""
        while self._copies:
            self._copies[0][1].synchronize()
            self._read_copy()

    def restart(self) -> None:
        """Begin a new mean."""
        self.total, self.rows = 0.0, 0

    @property
    def smoothed(self) -> float | None:
        """The exponential mean over batches, without the bias of its start; None before the first batch.

        A loss that is not finite is shown as it is, and the next finite one starts a new mean.
        """
        return self._smooth / (1 - KEPT**self._count) if self._count else self._unusual

    def _copy(self, loss: torch.Tensor, rows: int) -> None:
        import torch  # noqa: PLC0415  it is there if a loss is; nothing else here needs it

        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copies.append((loss.detach().to("cpu", non_blocking=True), copied, rows))
        copied.record(torch.cuda.current_stream(loss.device))
        while self._copies and self._copies[0][1].query():  # type: ignore[no-untyped-call]
            self._read_copy()

    def _read_copy(self) -> None:
        copy, _, rows = self._copies.popleft()
        self._add(copy.item(), rows)

    def _add(self, value: float, rows: int) -> None:
        self.total += value * rows
        self.rows += rows
        if value - value == 0:  # it is finite; cheaper than a call in each step
            self._smooth += (1 - KEPT) * (value - self._smooth)
            self._count += 1
        else:
            self._smooth, self._count, self._unusual = 0.0, 0, value
