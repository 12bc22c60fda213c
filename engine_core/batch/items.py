"""One item of a batch, whatever its container, and the batch as a tree of containers. Needs no torch, knows no rows."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from enum import Enum
from numbers import Number
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ..errors import BatchKeyError, did_you_mean

if TYPE_CHECKING:
    import torch


BatchKey: TypeAlias = "int | str | tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]"
"""Where an item is in a batch, as an index, a key or attribute name, or a pair of functions (getter, setter)."""


def get_item(batch: Any, key: BatchKey) -> Any:
    """Return the item of `batch` under `key`, or raise BatchKeyError.

    Example:
        >>> get_item(("x", "y"), 1), get_item({"labels": "y"}, "labels")
        ('y', 'y')
    """
    if isinstance(key, tuple):
        return key[0](batch)
    try:
        if _by_attribute(batch, key):
            return getattr(batch, key)  # type: ignore[arg-type]
        return batch[key]
    except (LookupError, TypeError, AttributeError) as error:
        raise BatchKeyError(_missing(batch, key)) from error


def set_item(batch: Any, key: BatchKey, value: Any) -> Any:
    """Return `batch` with the item under `key` replaced, or raise BatchKeyError; the loader's own stays as it is.

    A setter may change the batch in place and return None, or return another batch.

    Example:
        >>> set_item(("x", "y"), 1, "z"), set_item({"labels": "y"}, "labels", "z")
        (('x', 'z'), {'labels': 'z'})
    """
    if isinstance(key, tuple):
        changed = key[1](batch, value)
        return batch if changed is None else changed
    get_item(batch, key)
    if isinstance(batch, tuple):
        return _replace_in_tuple(batch, key, value)
    changed = copy_mapping(batch) if isinstance(batch, Mapping) else copy.copy(batch)
    if _by_attribute(batch, key):
        is_field = dataclasses.is_dataclass(batch) and str(key) in {field.name for field in dataclasses.fields(batch)}
        # Frozen ones too; making it again would run its own code a second time.
        (object.__setattr__ if is_field else setattr)(changed, str(key), value)
    else:
        changed[key] = value
    return changed


class HasBatch(Protocol):
    """Holds the current batch, as State does."""

    batch: Any


class ItemSwap:
    """Replaces the item under a key, and later puts the old one back, also where putting it there has failed half-way.

    Example:
        >>> from types import SimpleNamespace
        >>> state, swap = SimpleNamespace(batch=("x", "y")), ItemSwap(0)
        >>> swap.put(state, "mixed")
        >>> state.batch
        ('mixed', 'y')
        >>> swap.back(state)
        >>> state.batch
        ('x', 'y')
    """

    def __init__(self, key: BatchKey) -> None:
        self._key = key
        self._held: tuple[Any, Any, Any, Any] | None = None

    @property
    def is_in(self) -> bool:
        """Is there something to put back?"""
        return self._held is not None

    def put(self, state: HasBatch, value: Any) -> None:
        """Replace the item, and remember it and its batch; what is still in this batch is put back before."""
        if self._held is not None:
            batch, _, former, mine = self._held
            if get_item(state.batch, self._key) is former or (state.batch is mine and mine is not batch):
                self.back(state)
        batch, item = state.batch, get_item(state.batch, self._key)
        self._held = batch, item, value, batch  # before the user's setter, which may write in place and raise
        mine = set_item(batch, self._key, value)
        self._held = batch, item, value, mine
        state.batch = mine

    def back(self, state: HasBatch) -> None:
        """Put the item back: the very same batch, unless other items of it were replaced since."""
        if self._held is None:
            return
        batch, item, _, mine = self._held
        if state.batch is mine and mine is not batch:
            state.batch = batch
        # The user's setter may have written to the batch in place.
        if state.batch is not batch or get_item(batch, self._key) is not item:
            state.batch = set_item(state.batch, self._key, item)
        self._held = None


def copy_mapping(mapping: Mapping[Any, Any]) -> Any:
    """Return a writable copy with the same values.

    An unknown mapping may keep them in an inner object, which `copy.copy` would share; a read-only one becomes a dict.
    """
    if not isinstance(mapping, MutableMapping):
        return dict(mapping)
    if isinstance(mapping, (dict, UserDict)) or hasattr(mapping, "__copy__"):
        return copy.copy(mapping)
    return copy.deepcopy(mapping, {id(value): value for value in mapping.values()})


def _by_attribute(batch: Any, key: BatchKey) -> bool:
    return isinstance(key, str) and not isinstance(batch, Mapping)


def _replace_in_tuple(batch: tuple[Any, ...], key: int | str, value: Any) -> tuple[Any, ...]:
    if isinstance(key, str):
        return batch._replace(**{key: value})  # type: ignore[attr-defined, no-any-return]
    items = list(batch)
    items[key] = value
    return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)


def _missing(batch: Any, key: int | str) -> str:
    where = f"a batch of type {type(batch).__name__}"
    if isinstance(batch, Mapping):
        return f"{where} has no item {key!r}{did_you_mean(str(key), map(str, batch))}"
    if isinstance(key, str):
        names = getattr(batch, "_fields", None) or [n for n in getattr(batch, "__dict__", {}) if n[:1] != "_"]
        if isinstance(batch, (tuple, list)) and not names:
            return f"{where} with {len(batch)} items has no attribute {key!r}; give an index, 0 for the first"
        return f"{where} has no attribute {key!r}{did_you_mean(key, names)}"
    length = f"{len(batch)} items" if hasattr(batch, "__len__") else "no items"
    return f"{where} with {length} has no item {key!r}"


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


def leaves_of(batch: Any) -> list[Any]:
    """Return what `map_batch` would apply a function to."""
    leaves: list[Any] = []
    map_batch(batch, leaves.append)
    return leaves


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
