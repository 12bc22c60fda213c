"""Batches in any container of tensors: their items and their rows. Names of `rows` are imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .items import BatchKey, ItemSwap, get_item, set_item

if TYPE_CHECKING:
    from .rows import are_samples, count_rows, map_batch, map_rows, move_batch, slice_rows, split_batch, take_rows

__all__ = [
    "BatchKey",
    "ItemSwap",
    "are_samples",
    "count_rows",
    "get_item",
    "map_batch",
    "map_rows",
    "move_batch",
    "set_item",
    "slice_rows",
    "split_batch",
    "take_rows",
]


def __getattr__(name: str) -> Any:
    """Import `rows`, which needs torch, when one of its names is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(".rows", __name__), name)
    globals()[name] = value
    return value
