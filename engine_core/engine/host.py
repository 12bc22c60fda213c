"""The host: pluggy with our hooks and checks, the listeners on it, and callbacks opened once and closed once."""

from __future__ import annotations

import atexit
import functools
import inspect
import logging
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any, NoReturn

import pluggy

from .. import hookspecs
from ..algorithm import Algorithm, unique_names
from ..callback import Callback, LoggerDestination, method_of
from ..errors import ArgumentError, EngineError, HookNameWarning, PluginError, add_note, did_you_mean, nearest
from ..event import Event
from ..logger import Logger
from ..messages import warn
from ..registry import Registry, display_name
from ..state import SpanRecorder, State, nearest_field
from .members import check_listed

ARGUMENTS = ("event", "state", "logger", "traces")
_ARGUMENTS = ", ".join(ARGUMENTS)


class Adapter:
    """A plugin that the engine makes: functions by event, with pluggy's options for each.

    Callbacks are registered through one, never as the user's object itself: pluggy would use its properties, `==` and
    hash.
    """

    def __init__(self) -> None:
        self.options: dict[str, dict[str, Any]] = {}

    def add(self, event: Event, function: Callable[..., Any], **options: bool) -> None:
        """Let `function` handle `event`."""
        setattr(self, event.value, function)
        self.options[event.value] = options


class Host(pluggy.PluginManager):
    """The pluggy PluginManager of an engine; `register` and `unregister` work at any time between events.

    Args:
        on_change: called when a plugin that is not the engine's own adapter is added or removed.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        super().__init__(hookspecs.PROJECT)
        self._deprecated: dict[str, pluggy.HookspecOpts] = {}
        self._warned: set[tuple[object, str]] = set()
        self.add_hookspecs(hookspecs)
        self.monitors = 0
        self.changes = 0
        self._on_change = on_change

    def parse_hookspec_opts(self, module_or_class: Any, name: str) -> Any:
        """Return pluggy's options for a specification, without its warnings, which could not name the plugin."""
        options = super().parse_hookspec_opts(module_or_class, name)
        if options is None or not (options["warn_on_impl"] or options["warn_on_impl_args"]):
            return options
        self._deprecated[name] = options
        return {**options, "warn_on_impl": None, "warn_on_impl_args": None}

    def warn_of_deprecated(self, algorithms: Sequence[object], listeners: Sequence[object], registry: Registry) -> None:
        """Warn once per class about algorithms that list a deprecated event and callbacks that listen to one.

        An algorithm that lists no events has nothing to change: it is asked at every event there is.
        """
        for event, options in self._deprecated.items():
            users = [a for a in algorithms if event in (getattr(getattr(a, "metadata", None), "events", None) or ())]
            users += [listener for listener in listeners if method_of(listener, event) is not None]
            for user in users:
                self._warn(user, f"the event {event!r}", options["warn_on_impl"], registry)

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        """Return pluggy's options for a hook implementation, or None if it is not one."""
        if isinstance(plugin, Adapter):
            return plugin.options.get(name)
        if not isinstance(inspect.getattr_static(plugin, name, None), _HOOKABLE):
            return None  # pluggy <= 1.6 would run properties
        return super().parse_hookimpl_opts(plugin, name)

    def register(self, plugin: object, name: str | None = None) -> str | None:
        """Register an object with `@hookimpl` methods.

        Raises:
            PluginError: if a hook is misspelt or takes an unknown argument; nothing is registered then.
            ArgumentError: (a ValueError) if the plugin or its name is registered already.
        """
        if isinstance(plugin, Adapter):
            return super().register(plugin, name)
        self._check(plugin, name)
        self._warn_of_deprecated_hooks(plugin)
        try:
            registered = super().register(plugin, name)
        except pluggy.PluginValidationError as error:
            self.drop(plugin)  # pluggy <= 1.6 leaves a failed plugin half registered
            raise PluginError(f"plugin {_title(plugin, name)}: {error}") from error
        except ValueError as error:
            raise ArgumentError(f"plugin {_title(plugin, name)}: {error}") from error
        self._changed()
        return registered

    def unregister(self, plugin: object | None = None, name: str | None = None) -> Any:
        """Remove a plugin, given the plugin or its name."""
        removed = super().unregister(plugin, name)
        if not isinstance(removed, Adapter):
            self._changed()
        return removed

    def drop(self, plugin: object) -> None:
        """Remove a plugin if it is there, without notification."""
        if self.is_registered(plugin):
            super().unregister(plugin)

    def add_hookcall_monitoring(self, before: Any, after: Any) -> Callable[[], None]:
        """Call `before` and `after` around every event, also those without listeners."""
        undo = super().add_hookcall_monitoring(before, after)
        self.monitors += 1
        self._changed()
        watching = True

        def stop() -> None:
            nonlocal watching
            undo()
            self.monitors -= watching
            watching = False
            self._changed()

        return stop

    def listeners(self, event: Event) -> int:
        """Return how many hook implementations `event` has."""
        return len(getattr(self.hook, event.value).get_hookimpls())

    def has_guests(self) -> bool:
        """Is any plugin registered besides the engine's own adapters?"""
        return any(not isinstance(plugin, Adapter) for plugin in self.get_plugins())

    def _changed(self) -> None:
        self.changes += 1
        self._on_change()

    def _check(self, plugin: object, name: str | None) -> None:
        title = _title(plugin, name)
        if isinstance(plugin, type):
            raise PluginError(f"plugin {title} is a class; register an instance: {plugin.__name__}()")
        if isinstance(plugin, Callback):
            raise PluginError(f"plugin {title} is a Callback; give it to callbacks=[...] instead of the host")
        if isinstance(plugin, Algorithm) and not any(self._hooks_of(plugin)):
            raise PluginError(f"plugin {title} is an Algorithm; give it to algorithms=[...] instead of the host")
        for hook, event, options in self._hooks_of(plugin):
            if event not in _EVENTS and not options.get("optionalhook"):
                raise PluginError(
                    f"plugin {title} implements {event!r}, which is not an event{did_you_mean(event, _EVENTS)}"
                )
            _check_arguments(title, hook, getattr(plugin, hook))

    def _hooks_of(self, plugin: object) -> Iterator[tuple[str, str, Any]]:
        """Yield the methods that implement hooks, each with its event and pluggy's options."""
        for hook in dir(plugin):
            options = self.parse_hookimpl_opts(plugin, hook)
            if options is not None:
                yield hook, options.get("specname") or hook, options

    def _warn_of_deprecated_hooks(self, plugin: object) -> None:
        for hook, event, _ in self._hooks_of(plugin) if self._deprecated else ():
            if options := self._deprecated.get(event):
                registry = Registry.scan()
                self._warn(plugin, f"the event {event!r}", options["warn_on_impl"], registry)
                reasons = options["warn_on_impl_args"] or {}
                for argument in inspect.signature(getattr(plugin, hook), follow_wrapped=False).parameters:
                    self._warn(plugin, f"the argument {argument!r} of {event!r}", reasons.get(argument), registry)

    def _warn(self, plugin: object, what: str, why: Warning | None, registry: Registry) -> None:
        key = (plugin if isinstance(plugin, ModuleType) else type(plugin), what)
        if why is not None and key not in self._warned:
            warn(f"{_user(plugin, registry)} uses {what}, which is deprecated: {why}", type(why))
            self._warned.add(key)


_HOOKABLE = (FunctionType, MethodType, staticmethod, classmethod)


def _title(plugin: object, name: str | None) -> str:
    return repr(name) if name else f"of type {type(plugin).__name__!r}"


def _user(plugin: object, registry: Registry) -> str:
    """Return the plugin's class with its distribution or module; for a module, its name."""
    if isinstance(plugin, ModuleType):
        return f"module {plugin.__name__}"
    home = registry.origin_of(plugin) or f"module {type(plugin).__module__}"
    return f"{type(plugin).__name__} ({home})"


def _check_arguments(title: str, hook: str, method: Callable[..., Any]) -> None:
    for parameter in inspect.signature(method, follow_wrapped=False).parameters.values():
        where = f"plugin {title}, hook {hook!r}: argument {parameter.name!r}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY):
            raise PluginError(f"{where} can't be {parameter.kind.description}; name those you want of: {_ARGUMENTS}")
        if parameter.name not in ARGUMENTS:
            raise PluginError(f"{where} is unknown{did_you_mean(parameter.name, ARGUMENTS)}")
        if parameter.default is not parameter.empty:
            raise PluginError(f"{where} has a default value, which pluggy would use instead of the real one; remove it")


log = logging.getLogger("engine_core")

_open: dict[int, weakref.ref[Life]] = {}
"""Which engine opened each callback that is still open, by the callback's id, since it may be unhashable."""


class Life:
    """The callbacks that one engine has opened, with what closing them needs.

    They are closed by the engine, when the engine is collected (even from a cycle, which a callback that refers to its
    engine makes), or at interpreter exit.
    """

    def __init__(self, state: State, logger: Logger) -> None:
        self._state = state
        self._logger = logger
        self._opened: list[Callback] = []

    def open(self, callbacks: Sequence[Callback]) -> None:
        """Mark those callbacks as open that are not yet, or raise EngineError if one is open on another engine."""
        mine = {id(callback) for callback in self._opened}
        new = [callback for callback in callbacks if id(callback) not in mine]
        for callback in new:
            if id(callback) in _open:
                raise EngineError(
                    f"callback {type(callback).__name__} is still open on another engine; "
                    "close that engine first, or make a second instance"
                )
        for callback in new:
            _open[id(callback)] = weakref.ref(self)
            self._opened.append(callback)
        _close_the_rest_at_exit()

    def close(self, listed: Sequence[Callback] = ()) -> None:
        """Call `close` of each callback in order, destinations last, then `post_close` of those that succeeded.

        Args:
            listed: further ones that are closed although no event opened them, unless another engine has them open.
        """
        destinations = {id(destination) for destination in self._logger.destinations}
        both = [*self._opened, *(callback for callback in listed if id(callback) not in _open)]
        opened, self._opened = sorted(both, key=lambda callback: id(callback) in destinations), []
        closed = []
        for callback in opened:
            _open.pop(id(callback), None)
            if _survives(callback, "close", self._state, self._logger):
                closed.append(callback)
        for callback in closed:
            _survives(callback, "post_close")

    __del__ = close


def refuse_to_copy(owner: object, _: object) -> NoReturn:
    """Refuse to copy or pickle an object that belongs to one run, as its `__reduce_ex__`."""
    raise EngineError(
        f"{type(owner).__name__} can't be copied or pickled, since callbacks, hooks and the loader belong to one run: "
        "copy the weights with state.model.state_dict(), and the run with checkpoints (callback checkpoint_saver)"
    )


@functools.cache
def _close_the_rest_at_exit() -> None:
    atexit.register(_close_the_rest)


def _close_the_rest() -> None:
    """Close what is open, the youngest engine first."""
    while _open:
        life = _open.popitem()[1]()
        if life is not None:
            life.close()


def _survives(callback: Callback, what: str, *arguments: object) -> bool:
    method = getattr(callback, what, None)
    try:
        if method is not None:
            method(*arguments)
    except BaseException:  # the others must be closed whatever this one raises
        log.exception("%s of callback %s failed", what, type(callback).__name__)
        return False
    return True


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
