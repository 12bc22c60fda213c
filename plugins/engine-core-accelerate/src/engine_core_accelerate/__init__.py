"""Algorithms of engine-core in a loop with Accelerate, which is imported when `EngineLoop` is first asked for."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loop import EngineLoop

__all__ = ["EngineLoop"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(".loop", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
