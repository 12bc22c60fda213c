"""Admit algorithms to an engine: check each, name it, find out who ships it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..algorithm import Algorithm, algorithm_metadata, unique_names
from ..errors import ArgumentError, ArgumentTypeError, PluginError, add_note
from ..event import Event
from ..metadata import AlgorithmMetadata
from ..registry import Registry, check_that_a_call_runs

__all__ = ["Member", "describe", "enlist", "overrides", "take_in"]


@dataclass(eq=False, slots=True)
class Member:
    """An algorithm in an engine, under its unique name there."""

    algorithm: Algorithm
    name: str
    distribution: str | None
    events: frozenset[Event]
    validated: bool = False

    @property
    def metadata(self) -> AlgorithmMetadata:
        """What the algorithm declares."""
        return algorithm_metadata(self.algorithm)

    def blame(self, error: BaseException, what: str, event: Event) -> None:
        """Note on an exception that this algorithm raised it."""
        add_note(error, f"raised by {what} of algorithm {describe(self.name, self.distribution)} at {event.name}")


def describe(name: str, distribution: str | None) -> str:
    """Return a name with the distribution and version it comes from, where there is one."""
    if distribution is None:
        return name
    return f"{name} ({distribution} {Registry.scan().version_of(distribution)})"


def take_in(algorithms: Sequence[object], known: Mapping[int, Member]) -> list[Member]:
    """Return a member for each algorithm, each checked on its own."""
    seen: set[int] = set()
    for place, algorithm in enumerate(algorithms):
        _check(algorithm, place)
        if id(algorithm) in seen:
            raise ArgumentError(f"algorithm {place} ({algorithm!r}) is listed twice; make a second instance instead")
        seen.add(id(algorithm))
    return enlist(algorithms, {key: member for key, member in known.items() if key in seen})


def enlist(algorithms: Sequence[object], known: Mapping[int, Member]) -> list[Member]:
    """Return a member for each algorithm: the known one by id, or a new one whose name none of the known has."""
    newcomers = [a for a in algorithms if id(a) not in known]
    names = unique_names(newcomers, [member.name for member in known.values()])
    registry = Registry.scan()
    new = {id(a): _member(a, name, registry) for a, name in zip(newcomers, names, strict=True)}
    return [known.get(id(a)) or new[id(a)] for a in algorithms]


def overrides(algorithm: Algorithm, name: str) -> bool:
    """Does the class say anything else about `name` than the base class, or than nothing?"""
    if name in getattr(algorithm, "__dict__", {}):
        return True
    return getattr(type(algorithm), name, None) not in (None, getattr(Algorithm, name))


def _member(algorithm: object, name: str, registry: Registry) -> Member:
    record = registry.record_of(algorithm)
    if record is not None and record.status == "disabled":
        raise PluginError(
            f"algorithm {name} is {record.name!r} of {record.distribution} {record.version}, which is disabled: "
            f"{record.reason}; leave it out, or enable it"
        )
    listed = algorithm_metadata(algorithm).events
    events = frozenset(Event if listed is None else listed)
    return Member(algorithm, name, registry.distribution_of(algorithm), events)  # type: ignore[arg-type]


def _check(algorithm: object, place: int) -> None:
    if isinstance(algorithm, type):
        raise ArgumentTypeError(f"algorithm {place} is the class {algorithm.__name__}; write {algorithm.__name__}()")
    missing = [name for name in ("match", "apply") if not callable(getattr(algorithm, name, None))]
    if missing:
        raise ArgumentTypeError(
            f"algorithm {place} ({algorithm!r} of type {type(algorithm).__name__}) has no "
            f"{' and no '.join(missing)}; an algorithm has match(event, state) and apply(event, state, logger)"
        )
    for name, arguments in (("match", "(event, state)"), ("apply", "(event, state, logger)")):
        try:
            inspect.signature(getattr(algorithm, name)).bind(*arguments.split())
        except TypeError as error:
            raise ArgumentTypeError(f"{type(algorithm).__name__}.{name} has to take {arguments}: {error}") from error
        try:
            check_that_a_call_runs(getattr(algorithm, name), f"{type(algorithm).__name__}.{name}")
        except TypeError as error:
            raise ArgumentTypeError(str(error)) from None
    metadata = getattr(algorithm, "metadata", None)
    if metadata is not None and not isinstance(metadata, AlgorithmMetadata):
        raise ArgumentTypeError(
            f"{type(algorithm).__name__}.metadata is {metadata!r}; it has to be an AlgorithmMetadata(...)"
        )
