"""Split a batch and weight its microbatches' losses, so that their gradients add up to the batch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..batch import split_batch
from ..embed import divisor_of, reduce_loss
from ..state import State

ONCE_MORE = -1.0
"""The share of a microbatch that only runs again, see `take_part`."""


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


def take_part(
    state: State, outputs_of: Callable[[State], Any], loss_of: Callable[[State], Any]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Run forward and backward again, because other ranks have more microbatches and wait; return losses of 0.

    No event is fired, and the model's buffers stay as they are: the rows count once.
    """
    model: Any = state.model
    outputs, buffers = state.outputs, [(buffer, buffer.clone()) for buffer in model.buffers()]
    state.outputs = outputs_of(state)
    loss, parts = reduce_loss(loss_of(state), 0.0)
    loss.backward()  # type: ignore[no-untyped-call]
    state.outputs = outputs
    for buffer, former in buffers:
        buffer.copy_(former)
    return loss, parts
