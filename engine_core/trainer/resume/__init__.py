"""Save and resume a run: convert its parts to checkpoint content and back, and compare runs."""

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
