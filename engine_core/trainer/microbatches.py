"""Split a batch and weight its microbatches' losses, so that their gradients add up to the batch's."""

from __future__ import annotations

from typing import Any

from ..batch import split_batch
from .objective import divisor_of


def split_with_shares(batch: Any, size: int, loss_fn: Any) -> list[tuple[Any, float | None]]:
    """Return microbatches of at most `size` rows, each with the factor for its loss, None for no factor.

    A mean loss is weighted by its divisor. A sum needs no factor. Microbatches in which no target counts are left out.
    """
    pieces = split_batch(batch, size)
    if len(pieces) == 1:
        return pieces
    divisor = divisor_of(loss_fn)
    if divisor is None:
        return [(piece, None) for piece, _ in pieces]
    divisors = [float(divisor(piece)) for piece, _ in pieces]
    total = sum(divisors)
    if not total:
        return pieces
    return [(piece, own / total) for (piece, _), own in zip(pieces, divisors, strict=True) if own]
