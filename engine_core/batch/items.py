"""Read, replace or swap one item of a batch, whatever its container. No torch."""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Protocol, TypeAlias

from ..errors import BatchKeyError, did_you_mean

BatchKey: TypeAlias = "int | str | tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]"
"""Where an item is in a batch, as an index, a key or attribute name, or a pair of functions (getter, setter)."""


def get_item(batch: Any, key: BatchKey) -> Any:
    """Return the item of `batch` under `key`.

    Raises:
        BatchKeyError: if there is none.

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
    """Return `batch` with the item under `key` replaced; the loader's own container is left as it was.

    A setter may change the batch in place and return None, or return another batch.

    Raises:
        BatchKeyError: if there is no such item to replace.

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
