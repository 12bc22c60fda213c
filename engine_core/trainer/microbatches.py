"""Split a batch and weight its microbatches' losses, so that their gradients add up to the batch's."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from ..batch import split_batch
from ..losses import base_loss, loss_setting

_DEFAULT_IGNORED = -100  # the default in the signatures of cross_entropy and nll_loss


def split_with_shares(batch: Any, size: int, loss_fn: Any) -> list[tuple[Any, float | None]]:
    """Return microbatches of at most `size` rows, each with the factor for its loss, None for no factor.

    A mean loss is weighted by rows; one over classes (`CrossEntropyLoss`, `NLLLoss` and their functions) by its
    divisor, the sum of the class weights of the targets that are not ignored. A sum needs no factor. Microbatches
    in which no target counts are left out.
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
    """Does the loss sum its rows instead of averaging them?"""
    return loss_setting(loss_fn, "reduction") == "sum" or loss_setting(loss_fn, "size_average") is False


def _divisor(loss_fn: Any, piece: Any) -> torch.Tensor | None:
    """Return the divisor of a loss over classes, or None for any other loss or targets."""
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
    targets = targets.long()  # small integers can't hold the default ignore_index, and uint8 would be a mask
    ignored, weight = loss_setting(loss_fn, "ignore_index"), loss_setting(loss_fn, "weight")
    counted = targets[targets != (_DEFAULT_IGNORED if ignored is None else ignored)]
    return (
        torch.tensor(float(counted.numel()), dtype=torch.double)
        if weight is None
        else weight[counted].sum().double().cpu()
    )
