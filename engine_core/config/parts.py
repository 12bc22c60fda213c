"""Turn the sections of a config that concern the engine into objects: algorithms, callbacks, loggers, passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..algorithm import Algorithm
from ..batch import Batches
from ..callback import LoggerDestination, is_used_on
from ..errors import ArgumentError, ArgumentTypeError, PluginError, did_you_mean
from ..passes import AlgorithmPass, explicit_order
from ..registry import CORE, Kind, Registry
from .building import bind, build_plugin, find_plugin, find_target, import_plugin
from .reading import Place
from .schema import Config
from .sections import PassEntry, Target

_KIND_OF: dict[str, Kind] = {
    "algorithms": "algorithms",
    "callbacks": "callbacks",
    "loggers": "callbacks",
    "passes": "passes",
}


def check_plugins(config: Config) -> None:
    """Check that what the config requires and names is installed; imports nothing.

    Raises:
        ConfigError: for the first that is not, with the nearest name and the remedy.
    """
    registry = Registry.scan()
    for index, requirement in enumerate(config.require_plugins):
        try:
            registry.require([requirement])
        except PluginError as error:
            raise config.place("require_plugins", index).error(str(error), requirement) from None
    for section, kind in _KIND_OF.items():
        for index, entry in enumerate(getattr(config, section)):
            if entry.name is not None:
                find_plugin(kind, entry.name, config.place(section, index), registry)


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
        raise place.error(str(error), config.batches) from error


def build_algorithms(config: Config) -> list[Algorithm]:
    """Return the algorithms in the order in which they are listed."""
    registry = Registry.scan()
    return [
        build_plugin("algorithms", entry, config.place("algorithms", index), registry)
        for index, entry in enumerate(config.algorithms)
    ]


def build_listeners(config: Config, section: Literal["callbacks", "loggers"], rank: int = 0) -> list[Any]:
    """Return the callbacks or the loggers for this rank in the order in which they are listed; others are not made."""
    built, registry = [], Registry.scan()
    for index, entry in enumerate(getattr(config, section)):
        place = config.place(section, index)
        if rank and not is_used_on(rank, import_plugin("callbacks", entry, place, registry)):
            continue
        listener = build_plugin("callbacks", entry, place, registry)
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
    passes = [
        (_build_pass(entry, config.place("passes", index), owners, registry), entry.index)
        for index, entry in enumerate(config.passes)
    ]
    if config.order:
        _check_order(config, {registry.identify(a).name: type(a).__name__ for a in algorithms})
        passes.append((explicit_order(dict(config.order)), -1))
    return passes


def _build_pass(entry: PassEntry, place: Place, owners: set[str | None], registry: Registry) -> AlgorithmPass:
    if entry.name is None:
        return bind(Target(target=entry.target or "", args=entry.args), place)  # type: ignore[no-any-return]
    if entry.args:
        raise place.at("args").error(f"an installed pass takes no arguments, not {entry.args!r}", entry.args)
    owner = find_plugin("passes", entry.name, place, registry).distribution
    if owner in owners:
        raise place.error(f"pass {entry.name!r} runs anyway, as {owner} is in use; remove it here")
    return import_plugin("passes", entry, place, registry)  # type: ignore[no-any-return]


def _check_order(config: Config, registered: Mapping[str, str]) -> None:
    for event, names in config.order.items():
        for index, name in enumerate(names):
            if name not in registered and name not in registered.values():
                place = config.place("order", event, index)
                problem = f"{name!r} is not one of this config's algorithms{did_you_mean(name, registered)}"
                raise place.error(problem, name)
