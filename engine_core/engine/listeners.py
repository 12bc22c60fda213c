"""Wrap callbacks and logger destinations in the engine's own pluggy plugins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from ..algorithm import unique_names
from ..callback import Callback, LoggerDestination, method_of
from ..errors import HookNameWarning, add_note, nearest
from ..event import Event
from ..logger import Logger
from ..messages import warn
from ..registry import Registry, display_name
from ..state import State, nearest_field
from ..trace import SpanRecorder
from .host import Adapter
from .members import check_listed

Listener = Callable[[State, Logger], None]

_EVENTS = tuple(event.value for event in Event)
_CONTRACT = {name for name in dir(LoggerDestination) if not name.startswith("_")}
_BEFORE_TRAINING = (Event.INIT, Event.FIT_START)


def listeners_of(callbacks: Sequence[Callback], destinations: Sequence[Any]) -> list[Callback]:
    """Return the callbacks, then the logger destinations; an object that is both counts as a callback."""
    return [*callbacks, *(d for d in destinations if not any(d is c for c in callbacks))]


def watchers_of(listeners: Sequence[object], profiler: SpanRecorder | None) -> list[Any]:
    """Return what surrounds each `apply`: listeners with a method `around_apply`, and the profiler."""
    apart = profiler is not None and not any(profiler is listener for listener in listeners)
    return [*([profiler] if apart else []), *(x for x in listeners if callable(getattr(type(x), "around_apply", None)))]


def check_listeners(
    callbacks: Sequence[Callback], destinations: Sequence[Any], known: Collection[int] = ()
) -> list[Callback]:
    """Return callbacks and destinations as `listeners_of` does; refuse what can't be one, and warn of near names.

    Args:
        known: the ids of those checked before.
    """
    check_listed("callbacks", callbacks, known)
    check_listed("loggers", destinations, known)
    listeners = listeners_of(callbacks, destinations)
    for listener in listeners:
        for message in misspelt_hooks(type(listener)) if id(listener) not in known else ():
            warn(f"{message} (a leading underscore silences this)", HookNameWarning)
    return listeners


def listen(
    listeners: Sequence[Callback],
    destinations: Sequence[LoggerDestination],
    state: State,
    logger: Logger,
    registry: Registry,
) -> list[Adapter]:
    """Return an adapter for each listener, in the order to register them.

    pluggy calls the last registered first, so the list is reversed; at INIT destinations go before callbacks. The
    functions take no arguments, which saves pluggy work at each event. An exception in a destination stops the run
    only at INIT and FIT_START, where no training is lost and a wrong setting shows.
    """
    receives = {id(destination) for destination in destinations}
    isolated = receives - {id(callback) for callback in state.callbacks}
    isolation, profiler = logger.isolation, state.profiler
    names = unique_names(listeners)
    titles = [display_name(n, registry.origin_of(x)) for n, x in zip(names, listeners, strict=True)]
    isolation.titles = [(x, titled) for titled, x in zip(titles, listeners, strict=True) if id(x) in receives]
    adapters = []
    for name, titled, callback in zip(names, titles, listeners, strict=True):
        adapter = Adapter()
        own: object = callback
        for event in Event:
            method = method_of(callback, event.value)
            if method is not None:
                if id(callback) in isolated and event not in _BEFORE_TRAINING:
                    function = _isolated(callback, event.value, method, state, logger)
                else:
                    function = Noted(method, state, logger, f"callback {titled} at {event.name}").call
                if profiler is not None and profiler is not own:
                    function = _timed(function, profiler, f"callback/{name}/{event}")
                adapter.add(event, function, tryfirst=event is Event.INIT and id(callback) in receives)
        adapters.append(adapter)
    return adapters[::-1]


class Noted:
    """A callback's method, with a note on whatever it raises."""

    def __init__(self, method: Listener, state: State, logger: Logger, where: str) -> None:
        self.method = method
        self._state, self._logger, self._where = state, logger, where

    def call(self) -> None:
        """Call the method."""
        try:
            self.method(self._state, self._logger)
        except BaseException as error:
            self.note(error)
            raise

    def note(self, error: BaseException) -> None:
        """Note on an exception of the method where that was."""
        add_note(error, f"raised by {self._where}{nearest_field(error)}")


def _isolated(destination: object, event: str, method: Listener, state: State, logger: Logger) -> Callable[[], None]:
    def call() -> None:  # a function, as pluggy takes nothing else
        logger.isolation.call(destination, event, method, state, logger)

    return call


def _timed(function: Callable[[], None], profiler: SpanRecorder, span: str) -> Callable[[], None]:
    def call() -> None:
        with profiler.span(span):
            function()

    return call


def misspelt_hooks(cls: type) -> Iterator[str]:
    """Yield a message for each public method whose name is nearly an event's.

    Example:
        >>> list(misspelt_hooks(type("Watch", (), {"epoch_strat": print})))
        ["Watch.epoch_strat is never called: no event has that name; did you mean 'epoch_start'?"]
    """
    for name in dir(cls):
        known = name.startswith("_") or name in _EVENTS or name in _CONTRACT
        near = None if known else nearest(name, _EVENTS, cutoff=0.8)
        if near is not None and callable(getattr(cls, name, None)):
            yield f"{cls.__name__}.{name} is never called: no event has that name; did you mean {near!r}?"
