"""Whether a user's setter leaves the loader's own data alone."""

from __future__ import annotations

from typing import Any

from engine_core.batch import BatchKey, get_item, set_item
from engine_core.errors import ArgumentError

__all__ = ["check_setter"]


def check_setter(batch: Any, argument: str, key: BatchKey) -> None:
    """Raise if the user's setter writes into the batch itself: what it overwrites is lost for all epochs."""
    if not isinstance(key, tuple):
        return
    item = get_item(batch, key)
    alias = item.view_as(item) if hasattr(item, "view_as") else item
    changed = set_item(batch, key, alias)
    wrote = alias is not item and get_item(batch, key) is alias
    if wrote or changed is batch:
        set_item(batch, key, item)
        raise ArgumentError(
            f"the setter of {argument} writes into the loader's batch, which may be the loader's own data: it has "
            "to return a copy of the batch, and of everything on the way to the item"
        )
