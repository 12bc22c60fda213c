"""Turn a config into objects. Errors name the place in the file."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import pkgutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from ..algorithm import Algorithm
from ..batch import Batches
from ..callback import LoggerDestination, is_used_on
from ..errors import ArgumentError, ArgumentTypeError, EngineError, PluginError, add_note, did_you_mean, suggestion
from ..messages import raised_at
from ..passes import AlgorithmPass, explicit_order
from ..registry import CORE, Kind, PluginRecord, Registry
from .reading import LONGEST, PLUGINS, Place
from .schema import Config, PassEntry, PluginEntry, Target

T = TypeVar("T")


def find_target(target: str, place: Place) -> Any:
    """Import the callable that `module:attribute` names; an error inside the module gets a note of the place.

    Raises:
        ConfigError: if there is no such module or attribute, with the nearest name.
    """
    module_name, _, path = target.partition(":")
    found: Any = _import(module_name, place)
    for name in path.split("."):
        if not hasattr(found, name):
            owner = getattr(found, "__name__", module_name)
            raise place.error(f"{owner!r} has no attribute {name!r}{suggestion(name, dir(found))}")
        found = getattr(found, name)
    if not callable(found):
        raise place.error(f"{target!r} is not a class or function: it is {found!r:.{LONGEST}}")
    return found


def build(section: Target, place: Place) -> Any:
    """Import a target and call it with the arguments of its section."""
    return _called(find_target(section.target, place), section.args, place)


def make_factory(section: Target, place: Place, *later: str) -> functools.partial[Any]:
    """Return a function that calls the target with its argument first: how optimizers and schedulers are made.

    Target and arguments are checked now, not when the function is called; those named by `later` may come only then.
    """
    function = find_target(section.target, place)
    check_arguments(function, section.args, place, given=1, later=later)

    def make(argument: Any, /, **arguments: Any) -> Any:
        return _called(function, arguments, place, argument)

    return functools.partial(functools.update_wrapper(make, function, updated=()), **section.args)


def bind(section: Target, place: Place) -> Any:
    """Return a class's instance, or a function with the arguments of the section bound to it."""
    function = find_target(section.target, place)
    if inspect.isclass(function):
        return _called(function, section.args, place)
    check_arguments(function, section.args, place, given=None)
    return functools.partial(function, **section.args) if section.args else function


def import_plugin(kind: Kind, entry: PluginEntry, place: Place) -> Any:
    """Import an installed plugin by name, or a class of your own by target."""
    if entry.name is None:
        return find_target(entry.target or "", place)
    return _asked(Registry.scan().load, kind, entry.name, place)


def find_plugin(kind: Kind, name: str, place: Place) -> PluginRecord:
    """Return the record of an installed plugin; imports nothing."""
    return _asked(Registry.scan().find, kind, name, place)


def _asked(what: Callable[[Kind, str], T], kind: Kind, name: str, place: Place) -> T:
    """Ask the registry; add to its errors the place, and where to look if no name is similar."""
    try:
        return what(kind, name)
    except PluginError as error:
        records = Registry.scan().records
        known = any(record.name == name.rpartition(":")[2] for record in records)
        near = suggestion(name, [record.name for record in records if record.kind == kind])
        hint = "" if known or near else "; see `engine-core plugins list`; install more with pip"
        raise place.error(f"{error}{hint}") from error


def build_plugin(kind: Kind, entry: PluginEntry, place: Place) -> Any:
    """Return an instance of an installed plugin or of a class of your own."""
    return _called(import_plugin(kind, entry, place), entry.args, place)


def check_arguments(
    function: Any, arguments: Mapping[str, Any], place: Place, given: int | None, later: Iterable[str] = ()
) -> None:
    """Refuse arguments that the signature does not have; `given` more come first, None: an unknown number.

    Those named by `later` need not be there yet.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some C functions have none
        return
    parameters = signature.parameters.values()
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        for name in arguments:
            if name not in known:
                hint = suggestion(name, known) or f"; it takes: {', '.join(known) or 'none'}"
                raise place.at("args", name).error(f"{_title(function)} has no argument {name!r}{hint}")
    if given is None:
        return
    try:
        missing = {name: None for name in later if name in signature.parameters}
        signature.bind(*[None] * given, **{**missing, **arguments})
    except TypeError as error:
        raise place.at("args").error(f"{_title(function)}: {error}") from None


def _import(name: str, place: Place) -> Any:
    try:
        return importlib.import_module(name)
    except EngineError as error:
        raise place.error(str(error)) from error
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise place.error(f"there is no module {missing!r}{suggestion(missing, _siblings(missing))}") from None
        add_note(error, f"raised while importing {name!r} for {place}")
        raise


def _siblings(module: str) -> list[str]:
    """Return the modules beside one that does not exist."""
    package, _, _ = module.rpartition(".")
    try:
        path = importlib.import_module(package).__path__ if package else None
    except (ImportError, AttributeError):
        return []
    return [f"{package}.{m.name}" if package else m.name for m in pkgutil.iter_modules(path)]


def _called(function: Any, arguments: Mapping[str, Any], place: Place, *given: Any) -> Any:
    """Call; refused arguments end in one message, a crash keeps its traceback."""
    check_arguments(function, arguments, place, given=len(given))
    try:
        with _warnings_at(place):
            return function(*given, **arguments)
    except EngineError as error:
        raise place.error(str(error)) from error
    except (TypeError, ValueError) as error:
        raise place.error(f"{_title(function)}: {error}{raised_at(error)}") from error
    except Exception as error:
        add_note(error, f"raised while making what {place} describes")
        raise


@contextlib.contextmanager
def _warnings_at(place: Place) -> Iterator[None]:
    """Let the warnings of a block point at the line of the config; of values made in Python, where they did."""
    told: list[warnings.WarningMessage] = []
    origin = place.origin
    try:
        with warnings.catch_warnings(record=True) as told:
            yield
    finally:
        for each in told:
            file, line = (place.source.file, origin) if isinstance(origin, int) else (each.filename, each.lineno)
            warnings.warn_explicit(each.message, each.category, file, line)


def _title(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__name__)


def check_plugins(config: Config) -> None:
    """Check that what the config requires and names is installed; imports nothing.

    Raises:
        ConfigError: for the first that is not, with the nearest name and the remedy.
    """
    for requirement, place in config.entries("require_plugins"):
        try:
            Registry.scan().require([requirement])
        except PluginError as error:
            raise place.error(str(error)) from None
    for section in PLUGINS:
        kind: Any = "callbacks" if section == "loggers" else section
        for entry, place in config.entries(section):
            if entry.name is not None:
                find_plugin(kind, entry.name, place)


def build_batches(config: Config) -> Batches:
    """Return what the config says of batches.

    Raises:
        ConfigError: for a function that can't be imported, and for settings that can't work together.
    """
    place, said = config.place("batches"), config.batches.model_dump()
    for name in ("count", "take", "tokens"):
        if said[name] is not None:
            said[name] = find_target(said[name], place.at(name))
    try:
        return Batches(**said)
    except (ArgumentError, ArgumentTypeError) as error:
        raise place.error(str(error)) from error


def build_algorithms(config: Config) -> list[Algorithm]:
    """Return the algorithms in the order in which they are listed."""
    return [build_plugin("algorithms", *listed) for listed in config.entries("algorithms")]


def build_listeners(config: Config, section: Literal["callbacks", "loggers"], rank: int = 0) -> list[Any]:
    """Return the callbacks or the loggers for this rank in the order in which they are listed; others are not made."""
    built = []
    for entry, place in config.entries(section):
        if rank and not is_used_on(rank, import_plugin("callbacks", entry, place)):
            continue
        listener = build_plugin("callbacks", entry, place)
        if isinstance(listener, LoggerDestination) is not (section == "loggers"):
            what = "is a logger; list it under loggers" if section == "callbacks" else "is not a LoggerDestination"
            raise place.error(f"{type(listener).__name__} {what}")
        built.append(listener)
    return built


def build_passes(config: Config, algorithms: Sequence[Algorithm]) -> list[tuple[AlgorithmPass, int]]:
    """Return the user's own passes with their indices; the table under `order` comes last.

    Raises:
        ConfigError: for a pass that runs anyway, or a name in the table that no algorithm has.
    """
    registry = Registry.scan()
    owners = {CORE, *map(registry.distribution_of, algorithms)}
    passes = [(_build_pass(entry, place, owners), entry.index) for entry, place in config.entries("passes")]
    if config.order:
        _check_order(config, {registry.identify(a).name: type(a).__name__ for a in algorithms})
        passes.append((explicit_order(dict(config.order)), -1))
    return passes


def _build_pass(entry: PassEntry, place: Place, owners: set[str | None]) -> AlgorithmPass:
    if entry.name is None:
        return bind(Target(target=entry.target or "", args=entry.args), place)  # type: ignore[no-any-return]
    if entry.args:
        raise place.at("args").error(f"an installed pass takes no arguments, not {entry.args!r:.{LONGEST}}")
    owner = find_plugin("passes", entry.name, place).distribution
    if owner in owners:
        raise place.error(f"pass {entry.name!r} runs anyway, as {owner} is in use; remove it here")
    return import_plugin("passes", entry, place)  # type: ignore[no-any-return]


def _check_order(config: Config, registered: Mapping[str, str]) -> None:
    for names, place in config.entries("order"):
        for index, name in enumerate(names):
            if name not in registered and name not in registered.values():
                near = did_you_mean(name, registered)
                raise place.at(index).error(f"{name!r} is not one of this config's algorithms{near}")
