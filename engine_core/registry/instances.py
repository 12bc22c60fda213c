"""Instances for what a user lists: instances, names of installed plugins, and names with arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from ..callback import is_used_on
from ..errors import ArgumentError, add_note, did_you_mean
from .records import Kind
from .registry import Registry


def as_plugins(kind: Kind, given: Any, what: str, rank: int = 0) -> list[Any]:
    """Return instances for any mix of instances, names of installed plugins, and `(name, arguments)` pairs.

    Callbacks that are not for this rank, see `Callback.every_rank`, are left out, and not made.
    """
    items = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    if len(items) == 2 and isinstance(items[0], str) and isinstance(items[1], Mapping):
        raise ArgumentError(f"{what}: put the pair in a list: {what}=[({items[0]!r}, {dict(items[1])!r})]")
    registry = Registry.scan()
    made = (_as_plugin(registry, kind, item, what, rank) for item in items)
    return [plugin for plugin in made if plugin is not None]


def _as_plugin(registry: Registry, kind: Kind, item: Any, what: str, rank: int) -> Any:
    """Return an instance, or None for one that is not used on this rank."""
    if not isinstance(item, (str, tuple, list)):
        return item if is_used_on(rank, item) else None
    pair = (item, {}) if isinstance(item, str) else item
    if len(pair) != 2 or not isinstance(pair[0], str) or not isinstance(pair[1], Mapping):
        raise ArgumentError(f"{what}: a pair is (name, arguments), such as ('noise', {{'std': 0.1}}), not {item!r}")
    name, arguments = pair
    plugin = registry.load(kind, name)
    signature = inspect.signature(plugin)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        unknown = [a for a in arguments if a not in signature.parameters]
        problem = f"no argument {unknown[0]!r}{did_you_mean(unknown[0], signature.parameters)}" if unknown else error
        raise ArgumentError(f"{kind[:-1]} {name!r}: {problem}") from error
    if not is_used_on(rank, plugin):
        return None
    try:
        return plugin(**arguments)
    except Exception as error:
        add_note(error, f"while making {kind[:-1]} {name!r} with {dict(arguments)!r}")
        raise
