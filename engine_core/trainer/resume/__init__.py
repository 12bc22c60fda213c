"""Save and resume a run: convert its parts to checkpoint content and back, and compare runs."""

from __future__ import annotations

from .manifest import describe_run, hyperparameters_of, versions_of
from .restoring import go_back
from .resuming import Loading, clock_in, find_resumed, start_over
from .snapshot import copy_weights, take_snapshot
from .weights import load_weights, modes_of, shapes_of

__all__ = [
    "Loading",
    "clock_in",
    "copy_weights",
    "describe_run",
    "find_resumed",
    "go_back",
    "hyperparameters_of",
    "load_weights",
    "modes_of",
    "shapes_of",
    "start_over",
    "take_snapshot",
    "versions_of",
]
