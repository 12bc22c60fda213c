"""Batches as trees: what their tuples, lists, mappings and dataclasses hold. Needs no torch, and knows no rows."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from numbers import Number
from typing import TYPE_CHECKING, Any

from .items import copy_mapping

if TYPE_CHECKING:
    import torch

_PLAIN = (str, bytes, Number, Enum, type(None))


def map_batch(batch: Any, on_leaf: Callable[[Any], Any]) -> Any:
    """Return the batch with `on_leaf` applied to what its tuples, lists, mappings and dataclasses hold.

    Containers keep their type (named tuples, dataclasses and Hugging Face's mappings too) and are not changed in
    place. A list or tuple of plain values, such as strings, is one leaf; so is anything else that is not a tensor.

    Example:
        >>> import torch
        >>> map_batch({"x": torch.ones(2), "id": ["a", "b"]}, len)
        {'x': 2, 'id': 2}
    """

    def walk(item: Any) -> Any:
        return (
            rebuilt(item, lambda _, part: walk(part)) if is_container(item) and not are_values(item) else on_leaf(item)
        )

    # A whole batch that is a tuple of values, or a list of lists of them, is none of values itself.
    is_whole = isinstance(batch, tuple) or (
        isinstance(batch, list) and any(isinstance(i, (list, tuple)) for i in batch)
    )
    return rebuilt(batch, lambda _, part: walk(part)) if is_whole and is_container(batch) else walk(batch)


def move_batch(batch: Any, device: torch.device) -> Any:
    """Return the batch with its tensors, and whatever else has a `to`, on `device`.

    Copies from pinned memory are asynchronous.
    """
    torchs: Any = sys.modules.get("torch")  # without it there are no tensors

    def move(leaf: Any) -> Any:
        if torchs is not None and isinstance(leaf, torchs.Tensor):
            return leaf.to(device, non_blocking=True)
        return leaf.to(device) if callable(getattr(leaf, "to", None)) else leaf

    return map_batch(batch, move)


def is_array(item: Any) -> bool:
    """Is this a tensor, or something sliced and indexed like one, such as an array or a TensorDict?"""
    if getattr(item, "is_nested", False):  # torch's nested tensors may have no shape
        return True
    shape = getattr(item, "shape", None)
    return isinstance(shape, tuple) and not (shape == () and isinstance(item, Mapping))


def is_packed(item: Any) -> bool:
    """Is this a PackedSequence, a named tuple whose first tensor has the steps of all sequences?"""
    return isinstance(item, tuple) and hasattr(item, "batch_sizes")


def is_record(item: Any) -> bool:
    """Is this a mapping or an instance of a dataclass?"""
    return isinstance(item, Mapping) or (dataclasses.is_dataclass(item) and not isinstance(item, type))


def is_container(item: Any) -> bool:
    """Does this hold other items, by index, key or field?"""
    return not is_array(item) and not is_packed(item) and (isinstance(item, (list, tuple)) or is_record(item))


def is_value(item: Any) -> bool:
    """Is this a string, a number, None, or a list or tuple of such?"""
    return isinstance(item, _PLAIN) or are_values(item)


def are_values(item: Any) -> bool:
    """Is this a list or tuple of plain values, or of lists of them, and not a named tuple?"""
    return isinstance(item, (list, tuple)) and not hasattr(item, "_fields") and all(map(is_value, item))


def items_of(batch: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what a container holds, each with its index, key or field."""
    if isinstance(batch, (list, tuple)):
        yield from zip(getattr(batch, "_fields", None) or range(len(batch)), batch, strict=True)
    elif isinstance(batch, Mapping):
        yield from ((key, batch[key]) for key in batch)
    else:
        yield from ((field.name, getattr(batch, field.name)) for field in dataclasses.fields(batch))


def rebuilt(batch: Any, change: Callable[[Any, Any], Any]) -> Any:
    """Return a container of the same type with `change(key, item)` in place of each item."""
    if isinstance(batch, (list, tuple)):
        items = [change(key, item) for key, item in items_of(batch)]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    if isinstance(batch, Mapping):
        changed = copy_mapping(batch)
        for key in batch:
            changed[key] = change(key, batch[key])
        return changed
    changed = copy.copy(batch)
    for field in dataclasses.fields(batch):
        object.__setattr__(changed, field.name, change(field.name, getattr(batch, field.name)))  # it may be frozen
    return changed
