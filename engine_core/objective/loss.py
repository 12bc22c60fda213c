"""A loss as what it is made of: a sum, and the count that a mean divides it by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, TypeAlias

import torch

from ..errors import ArgumentError, ArgumentTypeError

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

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for what is not a scalar, or a negative count.

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
        elif count is not None and (not _is_number(count) or not count >= 0):
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


def _is_number(value: object) -> bool:
    return isinstance(value, (float, Real)) and not isinstance(value, bool)


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
    """Return 0 with the graph of a loss, so that its backward reaches all parameters.

    Example:
        >>> as_nothing(torch.tensor(3.0))
        tensor(0.)
    """
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
    if one is None or other is None:
        return one is other
    return one is other or bool(one == other)


def _number(count: Count) -> str:
    return "nothing (sums)" if count is None else f"{float(count):g}"
