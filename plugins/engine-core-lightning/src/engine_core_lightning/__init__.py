"""Algorithms of engine-core in Lightning's Trainer, by one callback, which is imported on first use: it needs torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .callback import EngineCallback

__all__ = ["EngineCallback"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(".callback", __name__), name)
