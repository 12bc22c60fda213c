"""The fraction of rows that is kept, by class or by tenth of the loss. Independent of model and engine."""

from __future__ import annotations

from typing import Any

import torch

from engine_core.arguments import item_at
from engine_core.batch import BatchKey
from engine_core.errors import ArgumentError

__all__ = ["MOST_CLASSES", "check_classes", "kept_by_class", "kept_by_loss"]

MOST_CLASSES = 20
"""How many classes are told apart; those from this number on are one group."""

_TENTHS = 10
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check_classes(batch: Any, target_key: BatchKey, rows: int) -> None:
    """Raise unless the targets of a batch are classes: a whole number for each row.

    Raises:
        ArgumentError: (a ValueError) that says what they are.
    """
    targets = item_at(batch, "target_key", target_key)
    if isinstance(targets, torch.Tensor):
        if targets.shape == (rows,) and targets.dtype in _WHOLE:
            return
        found = f"{targets.dtype} of shape {tuple(targets.shape)}"
    else:
        found = f"a {type(targets).__name__}"
    raise ArgumentError(
        f"log_by='class' needs targets that are classes, a whole number for each of the {rows} rows, and "
        f"target_key={target_key!r} finds {found}: set target_key to where they are, or use log_by='loss'"
    )


def kept_by_class(classes: torch.Tensor, rows: torch.Tensor) -> dict[str, float]:
    """Return the kept fraction of each class in the batch; negative classes, which a loss ignores, are left out.

    Args:
        classes: of all rows (n,).
        rows: the positions of the kept ones (k,).

    Example:
        >>> kept_by_class(torch.tensor([0, 3, 3, 99, 21, -100]), torch.tensor([1, 4, 5]))
        {'kept_by_class/0': 0.0, 'kept_by_class/3': 0.5, 'kept_by_class/other': 0.5}
    """
    groups = classes.long().clamp(-1, MOST_CLASSES)
    return _fractions("class", [*map(str, range(MOST_CLASSES)), "other"], groups, rows)


def kept_by_loss(losses: torch.Tensor, rows: torch.Tensor) -> dict[str, float]:
    """Return the kept fraction of each tenth of the rows, from those of the lowest losses, 0, to the highest, 9.

    Rows whose loss is not known, or not finite, are in no tenth. Of fewer than ten rows, some tenths have none.

    Args:
        losses: of all rows (n,), where those of examples never seen are the largest number.
        rows: the positions of the kept ones (k,).

    Example:
        >>> kept_by_loss(torch.tensor([0.3, 0.1, float("nan")]), torch.tensor([0, 2]))
        {'kept_by_loss/0': 0.0, 'kept_by_loss/5': 1.0}
    """
    is_known = losses.abs() < torch.finfo(losses.dtype).max
    order = losses.masked_fill(~is_known, torch.inf).sort(stable=True).indices
    tenths = torch.arange(len(losses), device=losses.device) * _TENTHS // is_known.sum().clamp(min=1)
    groups = torch.empty_like(tenths).index_copy_(0, order, tenths).masked_fill_(~is_known, -1)
    return _fractions("loss", [str(number) for number in range(_TENTHS)], groups, rows)


def _fractions(by: str, names: list[str], groups: torch.Tensor, rows: torch.Tensor) -> dict[str, float]:
    """Return the kept fraction of each group that has rows, with one transfer from the device."""
    counts = [
        torch.bincount(of + 1, minlength=len(names) + 1)
        for of in (groups, groups.index_select(0, rows.to(groups.device)))
    ]
    _, *pairs = zip(*torch.stack(counts).tolist(), strict=True)
    return {f"kept_by_{by}/{name}": kept / n for name, (n, kept) in zip(names, pairs, strict=True) if n}
