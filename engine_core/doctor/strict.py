"""What is wrong with a plugin although it can be loaded: hooks that are never called, unchecked metadata."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import ValidationError

from ..algorithm import Algorithm
from ..callback import Callback
from ..engine import Engine, misspelt_events, misspelt_hooks
from ..errors import EngineError, OrderError, did_you_mean
from ..event import Event
from ..hookspecs import PROJECT
from ..logger import Logger
from ..messages import in_one_line
from ..metadata import AlgorithmMetadata, PassMetadata
from ..passes import ActivePass
from ..registry import PluginRecord
from ..state import State

_EVENTS = [event.value for event in Event]


def problems_of(record: PluginRecord, plugin: Any) -> list[str]:
    """Return what is wrong with a plugin that was loaded, each in one sentence with its remedy."""
    if record.kind == "loops":  # data, which checked itself
        return []
    problems = [*_of_metadata(plugin), *(message for _, message in misspelt_events(plugin))]
    if record.kind == "callbacks":
        problems += misspelt_hooks(plugin)
    if record.kind == "algorithms" and not issubclass(plugin, Callback):
        problems += [
            f"{plugin.__name__}.{name} is never called: the engine calls match and apply of an algorithm; move its "
            f"code into apply, or register a callback"
            for name in _EVENTS
            if callable(getattr(plugin, name, None))
        ]
    if record.kind != "passes":
        problems += _of_marked_hooks(plugin)
    return problems


def broken_declarations(record: PluginRecord, plugin: Any, algorithms: Iterable[type]) -> list[str]:
    """Return where a pass contradicts the declared order of its own distribution's algorithms.

    Those that can't be made without arguments are left out.
    """
    made: list[Algorithm] = []
    for algorithm in algorithms:
        try:
            made.append(algorithm())
        except Exception:  # noqa: BLE001, S112  it has arguments, or needs a run around it
            continue
    try:
        with Engine(State(algorithms=made), Logger()) as engine:
            for event in Event:
                engine.explain(event)
    except OrderError as error:
        return [str(error)] if str(error).startswith(f"{ActivePass(plugin, record.origin)} ") else []
    except EngineError:  # they can't be together in one run, so no order can be wrong
        return []
    return []


def _of_metadata(plugin: Any) -> Iterator[str]:
    """Validate once more what pydantic validates only where it is asked to, as `model_construct` does not."""
    metadata = getattr(plugin, "metadata", None)
    if isinstance(metadata, (AlgorithmMetadata, PassMetadata)):
        try:
            type(metadata).model_validate(dict(metadata), strict=True)
        except ValidationError as error:
            yield in_one_line(error)


def _of_marked_hooks(plugin: type) -> Iterator[str]:
    for name, method in vars(plugin).items():
        if getattr(method, f"{PROJECT}_impl", None) is not None and name not in _EVENTS:
            yield f"{plugin.__name__}.{name} is marked with @hookimpl but is not an event{did_you_mean(name, _EVENTS)}"
