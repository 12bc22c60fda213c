"""One item of the batch in work, replaced for a while and put back."""

from __future__ import annotations

from typing import Any, Protocol

from .batch import BatchKey, get_item, set_item

__all__ = ["ItemSwap"]


class HasBatch(Protocol):
    """What keeps the batch in work, as State does."""

    batch: Any


class ItemSwap:
    """Puts a value where a key says, and later what was there back.

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
        self._held: tuple[Any, Any, Any] | None = None

    @property
    def is_in(self) -> bool:
        """Is there something to put back?"""
        return self._held is not None

    def put(self, state: HasBatch, value: Any) -> None:
        """Replace the item, and remember it and its batch."""
        batch, item = state.batch, get_item(state.batch, self._key)
        state.batch = set_item(state.batch, self._key, value)
        self._held = batch, item, state.batch

    def back(self, state: HasBatch) -> None:
        """Put the item back: the very batch, unless somebody has replaced other items of it since."""
        if self._held is None:
            return
        (batch, item, mine), self._held = self._held, None
        if state.batch is mine and mine is not batch:
            state.batch = batch
            if get_item(state.batch, self._key) is item:
                return
        # A setter of the user's may have written to the batch in place.
        state.batch = set_item(state.batch, self._key, item)
