"""A run saved and resumed: its parts as a checkpoint's content and back, and how a saved run differs."""

from __future__ import annotations

from .manifest import hyperparameters_of, versions_of
from .resuming import clock_in, find_resumed, start_over
from .snapshot import go_back, take_snapshot

__all__ = [
    "clock_in",
    "find_resumed",
    "go_back",
    "hyperparameters_of",
    "start_over",
    "take_snapshot",
    "versions_of",
]
