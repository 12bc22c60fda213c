"""From which distribution an object comes, told by the module in which its class is defined."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from .records import CORE, PluginRecord

__all__ = ["Provenance"]


class Provenance:
    """The modules that belong to one distribution alone, since only its entry points lie in them.

    A namespace that several distributions share belongs to none of them, what lies deeper in it may.
    """

    def __init__(self, records: Iterable[PluginRecord]) -> None:
        claims: dict[str, set[str]] = defaultdict(set)
        for record in records:
            module = record.entry_point.partition(":")[0]
            while module:
                claims[module].add(record.distribution)
                module = module.rpartition(".")[0]
        self._owners = {module: next(iter(owners)) for module, owners in claims.items() if len(owners) == 1}

    def distribution_of(self, plugin: object) -> str | None:
        """Return that of the first class in the MRO that a plugin ships; the core's only for what it ships itself."""
        owners = [self._owner(module) for module in _modules(plugin)]
        return next((owner for owner in owners if owner not in (None, CORE)), None) or (owners[0] if owners else None)

    def _owner(self, module: str) -> str | None:
        while module:
            if module in self._owners:
                return self._owners[module]
            module = module.rpartition(".")[0]
        return None


def _modules(plugin: object) -> list[str]:
    if isinstance(plugin, type):
        return [cls.__module__ for cls in plugin.__mro__]
    own = getattr(plugin, "__module__", None) if callable(plugin) and hasattr(plugin, "__name__") else None
    return [own] if own else [cls.__module__ for cls in type(plugin).__mro__]
