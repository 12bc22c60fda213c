"""The pluggy host of an engine: our hook specifications, and checks that pluggy leaves to its users."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pluggy

from .. import hookspecs
from ..algorithm import Algorithm
from ..callback import Callback, method_of
from ..errors import ArgumentError, PluginError, did_you_mean
from ..event import Event
from ..messages import warn
from ..registry import Registry

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


_EVENTS = tuple(event.value for event in Event)
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
