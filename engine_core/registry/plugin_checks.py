"""What each kind of plugin has to be, so that a run finds out when it loads one and not at the first event."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

from ..algorithm import Algorithm
from ..callback import Callback
from ..event import Event
from ..metadata import AlgorithmMetadata, PassMetadata
from .records import PluginRecord

__all__ = ["check_plugin", "check_that_a_call_runs"]


def check_plugin(record: PluginRecord, plugin: Any) -> None:
    """Check that what was imported is what its entry point says.

    Raises:
        TypeError: says what this kind of plugin has to be.
    """
    if record.kind == "passes":
        _check_pass(plugin)
        return
    if not isinstance(plugin, type):
        raise TypeError(f"an entry point of kind {record.kind} names a class, this is {plugin!r}")
    if record.kind == "algorithms":
        _check_algorithm(record.name, plugin)
    else:
        _check_callback(plugin)


def _check_pass(plugin: Any) -> None:
    if not callable(plugin) or isinstance(plugin, type):
        raise TypeError(f"a pass is a function (algorithms, event) -> algorithms, this is {plugin!r}")
    if not isinstance(getattr(plugin, "metadata", None), PassMetadata):
        raise TypeError("a registered pass is marked with @algorithm_pass(...), this one is not")
    if isinstance(plugin, FunctionType):
        _check_arguments(plugin, plugin.__qualname__, ("algorithms", "event"), bound=False)
    check_that_a_call_runs(plugin if isinstance(plugin, FunctionType) else type(plugin).__call__, "a pass")


def _check_algorithm(name: str, plugin: type) -> None:
    methods = {method: getattr(plugin, method, None) for method in ("match", "apply")}
    missing = [n for n, m in methods.items() if not callable(m) or getattr(m, "__isabstractmethod__", False)]
    if missing:
        raise TypeError(f"an algorithm has match and apply, {plugin.__name__} has no {' and no '.join(missing)}")
    _check_method(plugin, "match", ("event", "state"))
    _check_method(plugin, "apply", ("event", "state", "logger"))
    metadata = getattr(plugin, "metadata", Algorithm.metadata)
    if not isinstance(metadata, AlgorithmMetadata):
        raise TypeError(f"{plugin.__name__}.metadata has to be an AlgorithmMetadata, not {metadata!r}")
    if metadata.name not in (None, name):
        raise TypeError(f"its metadata says name={metadata.name!r}, and the entry point has another name")


def _check_callback(plugin: type) -> None:
    listens = [event.value for event in Event if callable(getattr(plugin, event.value, None))]
    if not listens and not issubclass(plugin, Callback):
        raise TypeError(f"a callback has methods named after events, {plugin.__name__} has none")
    for event in listens:
        _check_method(plugin, event, ("state", "logger"))


def _check_method(plugin: type, name: str, arguments: tuple[str, ...]) -> None:
    """Check plain methods; what is found elsewhere, as in a metaclass, is left to the engine, which has an instance."""
    check_that_a_call_runs(getattr(plugin, name), f"{plugin.__name__}.{name}")
    method = inspect.getattr_static(plugin, name, None)
    if isinstance(method, FunctionType):
        _check_arguments(method, f"{plugin.__name__}.{name}", arguments, bound=True)


def check_that_a_call_runs(function: Any, title: str) -> None:
    """Refuse what returns a coroutine or a generator: nobody would wait for it, so nothing of it would ever run."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{title} is an async function, and the engine waits for none; write it without async")
    if inspect.isgeneratorfunction(function):
        raise TypeError(f"{title} is a generator function, of which a call runs nothing; write it without yield")


def _check_arguments(function: FunctionType, title: str, arguments: tuple[str, ...], *, bound: bool) -> None:
    try:
        inspect.signature(function).bind(*["self"] * bound, *arguments)
    except TypeError as error:
        raise TypeError(f"{title} has to take ({', '.join(arguments)}): {error}") from None
