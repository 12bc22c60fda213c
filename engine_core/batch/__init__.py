"""Batches in any container of tensors: their items, and what a row of them is. Needs no torch."""

from typing import TYPE_CHECKING, Any

from .batches import Batches, count_rows, take_rows
from .containers import map_batch, move_batch
from .items import BatchKey, ItemSwap, get_item, set_item

if TYPE_CHECKING:
    from .rows import are_samples, map_rows, split_batch

__all__ = [
    "BatchKey",
    "Batches",
    "ItemSwap",
    "are_samples",
    "count_rows",
    "get_item",
    "map_batch",
    "map_rows",
    "move_batch",
    "set_item",
    "split_batch",
    "take_rows",
]


def __getattr__(name: str) -> Any:
    """Import what is left of the former rules, which needs torch, when it is asked for."""
    if name not in ("are_samples", "map_rows", "split_batch"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import rows  # noqa: PLC0415  needs torch

    return getattr(rows, name)
