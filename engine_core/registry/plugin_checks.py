"""What each kind of plugin must have: checked on the class when loaded, and on the instance when given to an engine."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

from ..callback import method_of, needs_of
from ..errors import did_you_mean
from ..event import Event
from ..messages import enumerated
from ..metadata import AlgorithmMetadata, PassMetadata
from ..needs import NEEDS, Offers
from .records import PluginRecord

LOGS = ("log_metrics", "log_hyperparameters", "log_traces")
"""The methods of a logger destination."""

_LISTENS_OTHERWISE = (*LOGS, "close", "around_apply")


def check_plugin(record: PluginRecord, plugin: Any) -> None:
    """Raise TypeError unless an imported object is the kind of plugin its entry point says."""
    if record.kind == "passes":
        _check_pass(plugin)
        return
    if record.kind == "loops":
        if not isinstance(plugin, Offers):
            raise TypeError(f"an entry point of kind loops must name an engine_core.needs.Offers, not {plugin!r}")
        return
    if not isinstance(plugin, type):
        raise TypeError(f"an entry point of kind {record.kind} must name a class, not {plugin!r}")
    if record.kind == "callbacks":
        check_callback(plugin, plugin.__name__)
        return
    check_algorithm(plugin, plugin.__name__)
    metadata = getattr(plugin, "metadata", None)
    if metadata is not None and metadata.name not in (None, record.name):
        raise TypeError(f"its metadata says name={metadata.name!r}, but the entry point has another name")


def check_algorithm(algorithm: Any, title: str) -> None:
    """Raise TypeError unless a class or an instance can be matched and applied."""
    if absent := lacking(algorithm, "match", "apply"):
        has = "an algorithm has match(event, state) and apply(event, state, logger)"
        raise TypeError(f"{title} has {absent}; {taken_for(algorithm) or has}")
    _check_method(algorithm, "match", algorithm.match, ("event", "state"))
    _check_method(algorithm, "apply", algorithm.apply, ("event", "state", "logger"))
    metadata = getattr(algorithm, "metadata", None)
    if metadata is not None and not isinstance(metadata, AlgorithmMetadata):
        raise TypeError(
            f"{_class_of(algorithm).__name__}.metadata is {metadata!r}; it has to be an AlgorithmMetadata(...)"
        )


def lacking(thing: object, *methods: str) -> str:
    """Return which of these methods a thing lacks, as in `no match and no apply`, or nothing."""
    found = {name: getattr(thing, name, None) for name in methods}
    missing = [n for n, m in found.items() if not callable(m) or getattr(m, "__isabstractmethod__", False)]
    return enumerated([f"no {name}" for name in missing])


def taken_for(plugin: Any) -> str:
    """Return what an instance is instead of what it was given as, and where it belongs, or nothing."""
    if isinstance(plugin, type):
        return ""
    if not lacking(plugin, "match", "apply"):
        return "it is an algorithm: give it to algorithms=[...]"
    if not lacking(plugin, *LOGS):
        return "it is a logger destination: give it to loggers=[...]"
    is_callback = any(method_of(plugin, event.value) is not None for event in Event)
    return "it is a callback: give it to callbacks=[...]" if is_callback else ""


def check_callback(callback: Any, title: str) -> None:
    """Raise TypeError unless a class or an instance has a method for some event, or listens otherwise."""
    is_class = isinstance(callback, type)  # `method_of` does not run an instance's properties
    names = [event.value for event in Event]
    found = {name: getattr(callback, name, None) if is_class else method_of(callback, name) for name in names}
    listens = {name: method for name, method in found.items() if callable(method)}
    if not listens and not any(hasattr(_class_of(callback), name) for name in _LISTENS_OTHERWISE):
        meant = taken_for(callback)
        raise TypeError(f"{title} has no method named after an event{meant and f'; {meant}'}")
    for name, method in listens.items():
        _check_method(callback, name, method, ("state", "logger"))
    needs, owner = needs_of(callback), _class_of(callback).__name__
    if not isinstance(needs, tuple):
        raise TypeError(f"{owner}.needs is {needs!r}; it has to be a tuple of names, such as ('freezing',)")
    for need in needs:
        if need not in NEEDS:
            raise TypeError(f"{owner}.needs: {need!r} is not what a loop can offer{did_you_mean(str(need), NEEDS)}")


def _check_pass(plugin: Any) -> None:
    if not callable(plugin) or isinstance(plugin, type):
        raise TypeError(f"a pass is a function (algorithms, event) -> algorithms, not {plugin!r}")
    if not isinstance(getattr(plugin, "metadata", None), PassMetadata):
        raise TypeError("a registered pass must be marked with @algorithm_pass(...)")
    if isinstance(plugin, FunctionType):
        _check_call(plugin, plugin.__qualname__, ("algorithms", "event"))
    _check_that_a_call_runs(plugin if isinstance(plugin, FunctionType) else type(plugin).__call__, "a pass")


def _class_of(plugin: Any) -> type:
    return plugin if isinstance(plugin, type) else type(plugin)


def _check_method(plugin: Any, name: str, method: Any, arguments: tuple[str, ...]) -> None:
    """Check a method's arguments; on a class only if it is a plain function, since an instance may have another."""
    title = f"{_class_of(plugin).__name__}.{name}"
    _check_that_a_call_runs(method, title)
    if not isinstance(plugin, type):
        _check_call(method, title, arguments)
    elif isinstance(inspect.getattr_static(plugin, name, None), FunctionType):
        _check_call(method, title, arguments, "self")


def _check_that_a_call_runs(function: Any, title: str) -> None:
    """Refuse what returns a coroutine or a generator: its body would never run."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{title} is an async function, which the engine can't await; write it without async")
    if inspect.isgeneratorfunction(function):
        raise TypeError(f"{title} is a generator function, so calling it runs nothing; write it without yield")


def _check_call(function: Any, title: str, arguments: tuple[str, ...], *before: str) -> None:
    try:
        inspect.signature(function).bind(*before, *arguments)
    except TypeError as error:
        raise TypeError(f"{title} has to take ({', '.join(arguments)}): {error}") from None
