"""Batches in any container of tensors: their items, and what a row of them is. Needs no torch."""

from .batches import Batches
from .items import BatchKey, ItemSwap, get_item, leaves_of, map_batch, move_batch, set_item

__all__ = [
    "BatchKey",
    "Batches",
    "ItemSwap",
    "get_item",
    "leaves_of",
    "map_batch",
    "move_batch",
    "set_item",
]
