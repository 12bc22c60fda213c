"""engine-core: a training engine for PyTorch in which every moment of the training loop is a plugin hook."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import passes
    from .algorithm import Algorithm
    from .batch import Batches
    from .callback import Callback, LoggerDestination
    from .engine import Engine
    from .event import Event
    from .hookspecs import hookimpl
    from .logger import Logger
    from .metadata import AlgorithmMetadata, PassMetadata
    from .objective import Loss, ModelLoss, Objective
    from .passes import AlgorithmPass, algorithm_pass
    from .run import load_model
    from .state import State
    from .time import Time, Timestamp, TimeUnit
    from .trace import Trace, Traces
    from .trainer import Trainer

__all__ = [
    "Algorithm",
    "AlgorithmMetadata",
    "AlgorithmPass",
    "Batches",
    "Callback",
    "Engine",
    "Event",
    "Logger",
    "LoggerDestination",
    "Loss",
    "ModelLoss",
    "Objective",
    "PassMetadata",
    "State",
    "Time",
    "TimeUnit",
    "Timestamp",
    "Trace",
    "Traces",
    "Trainer",
    "algorithm_pass",
    "hookimpl",
    "load_model",
    "passes",
]

_HOMES = {
    "algorithm": ("Algorithm",),
    "batch": ("Batches",),
    "callback": ("Callback", "LoggerDestination"),
    "engine": ("Engine",),
    "event": ("Event",),
    "hookspecs": ("hookimpl",),
    "logger": ("Logger",),
    "metadata": ("AlgorithmMetadata", "PassMetadata"),
    "objective": ("Loss", "ModelLoss", "Objective"),
    "passes": ("AlgorithmPass", "algorithm_pass"),
    "run": ("load_model",),
    "state": ("State",),
    "time": ("Time", "TimeUnit", "Timestamp"),
    "trace": ("Trace", "Traces"),
    "trainer": ("Trainer",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that importing the package costs next to nothing."""
    if name == "passes":
        return importlib.import_module(".passes", __name__)
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
