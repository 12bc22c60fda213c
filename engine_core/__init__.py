"""engine-core: a training engine for PyTorch in which every moment of the training loop is a plugin hook."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .moved import FormerModules

if TYPE_CHECKING:
    from . import passes as passes
    from .algorithm import Algorithm as Algorithm
    from .batch import Batches as Batches
    from .callback import Callback as Callback
    from .callback import LoggerDestination as LoggerDestination
    from .engine import Engine as Engine
    from .event import Event as Event
    from .hookspecs import hookimpl as hookimpl
    from .logger import Logger as Logger
    from .logger import Trace as Trace
    from .logger import Traces as Traces
    from .metadata import AlgorithmMetadata as AlgorithmMetadata
    from .metadata import PassMetadata as PassMetadata
    from .objective import Loss as Loss
    from .objective import ModelLoss as ModelLoss
    from .objective import Objective as Objective
    from .passes import AlgorithmPass as AlgorithmPass
    from .passes import algorithm_pass as algorithm_pass
    from .run import load_model as load_model
    from .state import State as State
    from .time import Time as Time
    from .time import Timestamp as Timestamp
    from .time import TimeUnit as TimeUnit
    from .trainer import Trainer as Trainer
    from .trainer import by_name as by_name

_HOMES = {
    "algorithm": ("Algorithm",),
    "batch": ("Batches",),
    "callback": ("Callback", "LoggerDestination"),
    "engine": ("Engine",),
    "event": ("Event",),
    "hookspecs": ("hookimpl",),
    "logger": ("Logger", "Trace", "Traces"),
    "metadata": ("AlgorithmMetadata", "PassMetadata"),
    "objective": ("Loss", "ModelLoss", "Objective"),
    "passes": ("AlgorithmPass", "algorithm_pass", "passes"),
    "run": ("load_model",),
    "state": ("State",),
    "time": ("Time", "TimeUnit", "Timestamp"),
    "trainer": ("Trainer", "by_name"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = list(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Import a public name on first use: most of them need torch."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f".{_HOME_OF[name]}", __name__)
    globals()[name] = value = home if name == _HOME_OF[name] else getattr(home, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


sys.meta_path.append(FormerModules())
