"""For authors of plugins: the conformance kit, and honest fakes with real signatures that remember what happened."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .conformance import AlgorithmConformance, PassConformance
    from .declared import invalid, misspelt_events
    from .ranks import ThreadRanks
    from .recording import RecordingDestination
    from .rules import BrokenRule

__all__ = [
    "AlgorithmConformance",
    "BrokenRule",
    "PassConformance",
    "RecordingDestination",
    "ThreadRanks",
    "invalid",
    "misspelt_events",
]

_HOME_OF = {
    "AlgorithmConformance": "conformance",
    "BrokenRule": "rules",
    "PassConformance": "conformance",
    "RecordingDestination": "recording",
    "ThreadRanks": "ranks",
    "invalid": "declared",
    "misspelt_events": "declared",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: pytest imports this package in projects that do not use it."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
