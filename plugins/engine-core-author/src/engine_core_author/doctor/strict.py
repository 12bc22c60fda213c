"""What is wrong with a plugin although it can be loaded: hooks that are never called, unchecked metadata."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine_core.algorithm import Algorithm
from engine_core.callback import Callback
from engine_core.config import ConfigError, Place, read_recipe
from engine_core.engine import Engine, misspelt_hooks
from engine_core.errors import EngineError, OrderError, did_you_mean
from engine_core.event import Event
from engine_core.hookspecs import PROJECT
from engine_core.logger import Logger
from engine_core.metadata import AlgorithmMetadata, PassMetadata
from engine_core.passes import ActivePass
from engine_core.registry import PluginRecord, Registry, load_plugin
from engine_core.state import State

from ..declared import invalid, misspelt_events, misspelt_references

_EVENTS = [event.value for event in Event]


def problems_of(record: PluginRecord, plugin: Any) -> list[str]:
    """Return what is wrong with a plugin that was loaded, each in one sentence with its remedy."""
    if record.kind == "loops":  # data, which checked itself
        return []
    if record.kind == "recipes":
        return _of_recipe(record)
    metadata = getattr(plugin, "metadata", None)
    unchecked = invalid(metadata) if isinstance(metadata, (AlgorithmMetadata, PassMetadata)) else None
    problems = [*([unchecked] if unchecked else []), *misspelt_events(plugin)]
    if record.kind == "callbacks":
        problems += misspelt_hooks(plugin)
    if isinstance(metadata, AlgorithmMetadata):
        problems += misspelt_references(metadata)
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


def _of_recipe(record: PluginRecord) -> list[str]:
    try:
        read_recipe(record, Place())
    except ConfigError as error:
        return [str(error)]
    return []


def broken_declarations(record: PluginRecord, plugin: Any, registry: Registry) -> list[str]:
    """Return where a pass contradicts the declared order of its own distribution's algorithms.

    Those that can't be made without arguments are left out.
    """
    made: list[Algorithm] = []
    for other in registry.records:
        if (other.kind, other.distribution, other.status) != ("algorithms", record.distribution, "available"):
            continue
        try:
            made.append(load_plugin(other)())
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


def _of_marked_hooks(plugin: type) -> Iterator[str]:
    for name, method in vars(plugin).items():
        if getattr(method, f"{PROJECT}_impl", None) is not None and name not in _EVENTS:
            yield f"{plugin.__name__}.{name} is marked with @hookimpl but is not an event{did_you_mean(name, _EVENTS)}"
