"""What each microbatch counts for in the loss of its batch, so that their gradients add up to the batch's."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from ..batch import split_batch
from ..losses import base_loss, loss_setting

__all__ = ["is_sum", "split_with_shares"]

_DEFAULT_IGNORED = -100  # of cross_entropy and nll_loss, which write it into their signatures


def split_with_shares(batch: Any, size: int, loss_fn: Any) -> list[tuple[Any, float | None]]:
    """Return microbatches of at most `size` rows, each with the factor for its loss; None: the loss as it is.

    A mean loss counts by rows, one over classes (`CrossEntropyLoss`, `NLLLoss` and their functions) by what it
    divides by: the targets that are not ignored, in their classes' weights. A sum needs no factor. Microbatches
    without any target that counts are left out.
    """
    pieces = split_batch(batch, size)
    if len(pieces) == 1:
        return pieces
    if is_sum(loss_fn):
        return [(piece, None) for piece, _ in pieces]
    divisors = [_divisor(loss_fn, piece) for piece, _ in pieces]
    known = [divisor for divisor in divisors if divisor is not None]
    if len(known) < len(pieces):
        return pieces
    counts = torch.stack(known).tolist()
    total = sum(counts)
    if not total:
        return pieces
    return [(piece, count / total) for (piece, _), count in zip(pieces, counts, strict=True) if count]


def is_sum(loss_fn: Any) -> bool:
    """Does the loss add its rows up, instead of taking their mean?"""
    return loss_setting(loss_fn, "reduction") == "sum" or loss_setting(loss_fn, "size_average") is False


def _divisor(loss_fn: Any, piece: Any) -> torch.Tensor | None:
    """Return what a loss over classes divides the sum of its targets by, None for any other loss or targets."""
    base = base_loss(loss_fn)
    over_classes = isinstance(base, (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss))
    if not over_classes and base not in (F.cross_entropy, F.nll_loss):
        return None
    try:
        targets = piece[1]
    except (LookupError, TypeError):
        return None
    if not isinstance(targets, torch.Tensor) or targets.is_floating_point():
        return None
    targets = targets.long()  # small integers can't be what is ignored by default, and bytes would be a mask
    ignored, weight = loss_setting(loss_fn, "ignore_index"), loss_setting(loss_fn, "weight")
    counted = targets[targets != (_DEFAULT_IGNORED if ignored is None else ignored)]
    return (
        torch.tensor(float(counted.numel()), dtype=torch.double)
        if weight is None
        else weight[counted].sum().double().cpu()
    )
