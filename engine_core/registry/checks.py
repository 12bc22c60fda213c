"""Import one plugin, and check what each kind has to be: a class when it is loaded, an instance when it is admitted."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from types import FunctionType
from typing import Any, Literal

from ..callback import method_of, needs_of
from ..errors import MetadataError, PluginError, add_note, did_you_mean
from ..event import Event
from ..messages import cause_of, join_words, readable
from ..metadata import AlgorithmMetadata, PassMetadata
from ..needs import NEEDS, Offers
from .installed import DENY, Kind, PluginRecord, unmet

LOGS = ("log_metrics", "log_hyperparameters", "log_traces")
"""The methods of a logger destination."""

_DATA = {"loops": (Offers, "an engine_core.needs.Offers"), "recipes": (os.PathLike, "the path of a YAML file")}


def load_plugin(record: PluginRecord) -> Any:
    """Import what an entry point names, and check that it is a plugin of that kind.

    Raises:
        PluginError: says what is wrong and what to do; the cause is attached.
    """
    try:
        plugin = functools.reduce(getattr, record.attribute.split("."), importlib.import_module(record.module))
        _check_loaded(record, plugin)
    except KeyboardInterrupt as interruption:
        add_note(interruption, f"while importing {record.title} from {record.entry_point!r}")
        raise
    except BaseException as error:  # a plugin may raise SystemExit while it is imported
        raise PluginError(f"{cause_of(error)}; {_remedy_for(error, record)}") from error
    return plugin


def check_plugin(kind: Kind | Literal["loggers"], plugin: Any, place: str = "") -> None:
    """Raise TypeError unless a class, an instance or a function can be a plugin of this kind.

    Args:
        place: an instance's place in a list, as `algorithm 1`, for messages.
    """
    if kind == "passes":
        _check_pass(plugin)
    elif kind in _DATA:
        cls, what = _DATA[kind]
        if not isinstance(plugin, cls):
            raise TypeError(f"an entry point of kind {kind} must name {what}, not {plugin!r}")
    elif kind == "commands":
        if missing_methods(plugin, "main", "make_context"):
            raise TypeError(f"an entry point of kind commands must name a click.Command, not {plugin!r}")
    elif kind == "algorithms":
        contract = "an algorithm has match(event, state) and apply(event, state, logger)"
        _check_methods(plugin, place, ("match", "apply"), contract)
        _check_call(plugin, "match", plugin.match, ("event", "state"))
        _check_call(plugin, "apply", plugin.apply, ("event", "state", "logger"))
        metadata = getattr(plugin, "metadata", None)
        if metadata is not None and not isinstance(metadata, AlgorithmMetadata):
            owner = _class_of(plugin).__name__
            raise TypeError(f"{owner}.metadata is {metadata!r}; it has to be an AlgorithmMetadata(...)")
    else:
        if kind == "loggers":
            _check_methods(plugin, place, LOGS, "a destination is a LoggerDestination")
        _check_callback(plugin, place)


def _check_loaded(record: PluginRecord, plugin: Any) -> None:
    if record.kind in ("algorithms", "callbacks") and not isinstance(plugin, type):
        raise TypeError(f"an entry point of kind {record.kind} must name a class, not {plugin!r}")
    check_plugin(record.kind, plugin)
    metadata = getattr(plugin, "metadata", None) if record.kind == "algorithms" else None
    if metadata is not None and metadata.name not in (None, record.name):
        raise TypeError(f"its metadata says name={metadata.name!r}, but the entry point has another name")


def missing_methods(thing: object, *methods: str) -> str:
    """Return which of these methods a thing lacks, as in `no match and no apply`, or nothing."""
    found = {name: getattr(thing, name, None) for name in methods}
    missing = [n for n, m in found.items() if not callable(m) or getattr(m, "__isabstractmethod__", False)]
    return join_words([f"no {name}" for name in missing])


def _check_methods(plugin: Any, place: str, methods: tuple[str, ...], contract: str) -> None:
    if missing := missing_methods(plugin, *methods):
        raise TypeError(f"{_shown(plugin, place)} has {missing}; {_kind_hint(plugin) or contract}")


def _check_callback(callback: Any, place: str) -> None:
    is_class = isinstance(callback, type)  # `method_of` does not run an instance's properties
    names = [event.value for event in Event]
    found = {name: getattr(callback, name, None) if is_class else method_of(callback, name) for name in names}
    listens = {name: method for name, method in found.items() if callable(method)}
    owner = _class_of(callback)
    if not listens and not any(hasattr(owner, name) for name in (*LOGS, "close", "around_apply")):
        hint = _kind_hint(callback)
        raise TypeError(f"{_shown(callback, place)} has no method named after an event{hint and f'; {hint}'}")
    for name, method in listens.items():
        _check_call(callback, name, method, ("state", "logger"))
    needs = needs_of(callback)
    if not isinstance(needs, tuple):
        raise TypeError(f"{owner.__name__}.needs is {needs!r}; it has to be a tuple of names, such as ('freezing',)")
    for need in needs:
        if need not in NEEDS:
            hint = did_you_mean(str(need), NEEDS)
            raise TypeError(f"{owner.__name__}.needs: {need!r} is not what a loop can offer{hint}")


def _check_pass(plugin: Any) -> None:
    if not callable(plugin) or isinstance(plugin, type):
        raise TypeError(f"a pass is a function (algorithms, event) -> algorithms, not {plugin!r}")
    if not isinstance(getattr(plugin, "metadata", None), PassMetadata):
        raise TypeError("a registered pass must be marked with @algorithm_pass(...)")
    _check_that_a_call_runs(plugin if isinstance(plugin, FunctionType) else type(plugin).__call__, "a pass")
    if isinstance(plugin, FunctionType):
        _bind(plugin, plugin.__qualname__, ("algorithms", "event"))


def _kind_hint(plugin: Any) -> str:
    """Return what an instance is instead of what it was given as, and where it belongs, or nothing."""
    if isinstance(plugin, type):
        return ""
    if not missing_methods(plugin, "match", "apply"):
        return "it is an algorithm: give it to algorithms=[...]"
    if not missing_methods(plugin, *LOGS):
        return "it is a logger destination: give it to loggers=[...]"
    is_callback = any(method_of(plugin, event.value) is not None for event in Event)
    return "it is a callback: give it to callbacks=[...]" if is_callback else ""


def _shown(plugin: Any, place: str) -> str:
    return plugin.__name__ if isinstance(plugin, type) else f"{place} ({plugin!r} of type {type(plugin).__name__})"


def _class_of(plugin: Any) -> type:
    return plugin if isinstance(plugin, type) else type(plugin)


def _check_call(plugin: Any, name: str, method: Any, arguments: tuple[str, ...]) -> None:
    """Check a method's arguments; on a class only if it is a plain function, since an instance may have another."""
    title = f"{_class_of(plugin).__name__}.{name}"
    _check_that_a_call_runs(method, title)
    if not isinstance(plugin, type):
        _bind(method, title, arguments)
    elif isinstance(inspect.getattr_static(plugin, name, None), FunctionType):
        _bind(method, title, arguments, "self")


def _check_that_a_call_runs(function: Any, title: str) -> None:
    """Refuse what returns a coroutine or a generator: its body would never run."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{title} is an async function, which the engine can't await; write it without async")
    if inspect.isgeneratorfunction(function):
        raise TypeError(f"{title} is a generator function, so calling it runs nothing; write it without yield")


def _bind(function: Any, title: str, arguments: tuple[str, ...], *before: str) -> None:
    try:
        inspect.signature(function).bind(*before, *arguments)
    except TypeError as error:
        raise TypeError(f"{title} has to take ({', '.join(arguments)}): {error}") from None


def _remedy_for(error: BaseException, record: PluginRecord) -> str:
    """Return what to do about an exception that the import of a plugin raised."""
    name = record.distribution
    if isinstance(error, MetadataError) and ": hook_api: " in str(error):
        return f"or install another version of {name}"
    if isinstance(error, ModuleNotFoundError) and isinstance(error.name, str):
        module = error.name.partition(".")[0]
        if module == record.module.partition(".")[0]:
            return f"{name} lacks a module of its own; install it again, or run: pip uninstall {name}"
        if requirements := [requirement for requirement, _ in unmet(name)]:
            quoted = " ".join(f"'{requirement}'" for requirement in requirements)
            return f"{name} requires {', '.join(requirements)}; run: pip install {quoted}"
        return (
            f"{name} does not declare what it needs for {readable(module)!r}; report it to its authors, and "
            "install the distribution that has this module"
        )
    return f"fix or uninstall {name}, or disable it with {DENY}={record.qualified_name}"
