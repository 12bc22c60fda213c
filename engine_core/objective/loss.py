"""A loss as what it is made of: a sum, and the count that a mean divides it by; and its mean over batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, TypeAlias

import torch

from ..errors import ArgumentError, ArgumentTypeError
from ..losses import LateValue

Count: TypeAlias = "int | float | torch.Tensor | None"


@dataclass(frozen=True)
class Loss:
    """The loss of some rows: a sum over what counts, and how much counts.

    Two losses with the same count, such as two terms of one batch, can be added, and numbers scale the sum. Losses of
    different rows are joined by `merged`.

    Args:
        sum: a scalar with its graph.
        count: what a mean divides the sum by: rows, tokens, class weights. 0: nothing counts. None: it is a sum, which
            nothing divides.
        parts: further sums with the same count, logged as `train/loss/<name>`.

    Example:
        >>> Loss(torch.tensor(6.0), 3).mean
        tensor(2.)
        >>> (Loss(torch.tensor(6.0), 3) + 0.5 * Loss(torch.tensor(2.0), 3)).sum
        tensor(7.)
    """

    sum: torch.Tensor
    count: Count
    parts: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count: Any = self.count
        total: Any = self.sum
        if not isinstance(total, torch.Tensor) or total.dim():
            check_scalar(self.sum, "the sum of a Loss")
        for name, part in self.parts.items():
            check_scalar(part, f"part {name!r} of a Loss")
        if type(count) is int and count >= 0:
            return
        if isinstance(count, torch.Tensor):
            if count.dim():
                raise ArgumentError(f"the count of a Loss has shape {tuple(count.shape)}; add it up, as count.sum()")
        elif count is not None and (isinstance(count, bool) or not isinstance(count, Real) or not float(count) >= 0):
            raise ArgumentError(f"the count of a Loss is {count!r}; it has to be a number of at least 0, or None")

    @property
    def mean(self) -> torch.Tensor:
        """The sum divided by the count; the sum itself if there is no count, and NaN if nothing counts."""
        return divided(self.sum, self.count)

    @property
    def means(self) -> dict[str, torch.Tensor]:
        """The parts, each divided by the count."""
        return {name: divided(part, self.count) for name, part in self.parts.items()}

    def __add__(self, other: Any) -> Loss:
        if not isinstance(other, Loss):
            return NotImplemented
        if not _are_equal(self.count, other.count):
            raise ArgumentError(
                f"losses that count {_number(self.count)} and {_number(other.count)} can't be added: give both one "
                "count, or return them as named parts"
            )
        names = [*self.parts, *(name for name in other.parts if name not in self.parts)]
        parts = {name: self.parts.get(name, 0) + other.parts.get(name, 0) for name in names}
        return Loss(self.sum + other.sum, self.count, parts)  # type: ignore[arg-type]

    def __mul__(self, factor: float | torch.Tensor) -> Loss:
        return replace(self, sum=self.sum * factor, parts={n: p * factor for n, p in self.parts.items()})

    __rmul__ = __mul__

    def __truediv__(self, factor: float | torch.Tensor) -> Loss:
        return self * (1 / factor)

    def detach(self) -> Loss:
        """Return the same loss without its graph."""
        count = self.count.detach() if isinstance(self.count, torch.Tensor) else self.count
        return Loss(self.sum.detach(), count, {name: part.detach() for name, part in self.parts.items()})

    @staticmethod
    def merged(losses: Iterable[Loss]) -> Loss:
        """Return the loss of the rows of several losses together: sums and counts add up.

        Example:
            >>> Loss.merged([Loss(torch.tensor(6.0), 3), Loss(torch.tensor(2.0), 1)]).mean
            tensor(2.)
        """
        first, *others = losses
        total: Any = first.sum
        count: Any = first.count
        parts: dict[str, Any] = dict(first.parts)
        for each in others:
            if (each.count is None) != (count is None):
                raise ArgumentError("one loss of a batch is a sum (count=None) and another has a count: give both one")
            total = total + each.sum
            count = None if count is None else count + each.count
            for name, part in each.parts.items():
                parts[name] = parts[name] + part if name in parts else part
        return Loss(total, count, parts)


def divided(total: torch.Tensor, count: Count) -> torch.Tensor:
    """Return a sum divided by its count."""
    return total if count is None else total / count


def weighted(mean: torch.Tensor, count: Count) -> torch.Tensor:
    """Return the sum of which something is the mean: 0 where nothing counts, since that mean is not a number."""
    if count is None:
        return mean
    if not isinstance(count, torch.Tensor) or count.device.type == "cpu":  # its value is there
        return mean * count if count else as_nothing(mean)
    return torch.where(count > 0, mean * count, torch.zeros_like(mean))


def as_nothing(loss: torch.Tensor) -> torch.Tensor:
    """Return 0 with the graph of a loss, so that its backward reaches all parameters."""
    weightless = loss * 0
    return weightless.where(weightless == 0, torch.zeros_like(weightless))


def check_scalar(loss: Any, what: str) -> torch.Tensor:
    """Return a tensor without dimensions, or raise."""
    if not isinstance(loss, torch.Tensor):
        raise ArgumentTypeError(f"{what} is {loss!r:.80} ({type(loss).__name__}); it has to be a scalar tensor")
    if loss.dim():
        raise ArgumentError(f"{what} has shape {tuple(loss.shape)}; reduce it to a scalar, as loss.mean() does")
    return loss


def _are_equal(one: Count, other: Count) -> bool:
    return one is other or (one is not None and other is not None and bool(one == other))


def _number(count: Count) -> str:
    return "nothing (sums)" if count is None else f"{float(count):g}"


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
