"""Names that have moved from a module of the core to another distribution, importable for one more minor version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from importlib_metadata import entry_points

from .messages import warn

__all__ = ["GROUP", "moved"]

GROUP = "moved_from_engine_core"
"""The group of entry points whose names are modules of the core, and whose values are where their names are now."""


def moved(module: str, *names: str, extra: str) -> Callable[[str], Any]:
    """Return a module's `__getattr__`, which takes some of its names from where an installed distribution has them.

    Args:
        names: those that have moved; none: all.
        extra: the extra of engine-core that installs them.

    Raises:
        ImportError: from `__getattr__`, if no installed distribution has them.
    """

    def find(name: str) -> Any:
        if name.startswith("__") or (names and name not in names):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found = [*entry_points(group=GROUP, name=module)]
        if not found:
            raise ImportError(f"{module}.{name} has moved out of engine-core: pip install 'engine-core[{extra}]'")
        now = found[0].value
        warn(f"{module}.{name} has moved: import it from {now}; the old name goes away soon", DeprecationWarning)
        return getattr(found[0].load(), name)

    return find
