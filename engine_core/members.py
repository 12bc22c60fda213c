"""Admit algorithms to an engine: check each, name it, find out who ships it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .algorithm import Algorithm, unique_names
from .errors import ArgumentError, ArgumentTypeError, EngineError, PluginError, add_note
from .event import Event
from .metadata import AlgorithmMetadata
from .ordering import stable_sort
from .passes import declared_edges, referred, registered_name
from .registry import Registry

__all__ = ["Member", "admit", "describe", "enlist"]


@dataclass(eq=False, slots=True)
class Member:
    """An algorithm in an engine, under its unique name there."""

    algorithm: Algorithm
    name: str
    distribution: str | None
    events: frozenset[Event]
    validated: bool = False

    def blame(self, error: BaseException, what: str, event: Event) -> None:
        """Note on an exception that this algorithm raised it."""
        add_note(error, f"raised by {what} of algorithm {describe(self.name, self.distribution)} at {event.name}")


def describe(name: str, distribution: str | None) -> str:
    """Return a name with the distribution and version it comes from, where there is one."""
    if distribution is None:
        return name
    return f"{name} ({distribution} {Registry.scan().version_of(distribution)})"


def admit(algorithms: Sequence[object], known: Mapping[int, Member]) -> list[Member]:
    """Return a member for each algorithm of an engine; those that are known already stay who they are.

    Raises:
        ArgumentTypeError: (a TypeError) for what is no algorithm.
        ArgumentError: (a ValueError) for an instance that is listed twice.
        EngineError: for a combination that their metadata rules out.
    """
    seen: set[int] = set()
    for place, algorithm in enumerate(algorithms):
        _check(algorithm, place)
        if id(algorithm) in seen:
            raise ArgumentError(f"algorithm {place} ({algorithm!r}) is listed twice; make a second instance instead")
        seen.add(id(algorithm))
    members = enlist(algorithms, {key: member for key, member in known.items() if key in seen})
    check_together(members)
    return members


def enlist(algorithms: Sequence[object], known: Mapping[int, Member]) -> list[Member]:
    """Return a member for each algorithm: the known one by id, or a new one whose name none of the known has."""
    newcomers = [a for a in algorithms if id(a) not in known]
    names = unique_names(newcomers, [member.name for member in known.values()])
    registry = Registry.scan()
    new = {id(a): _member(a, name, registry) for a, name in zip(newcomers, names, strict=True)}
    return [known.get(id(a)) or new[id(a)] for a in algorithms]


def check_together(members: Sequence[Member]) -> None:
    """Raise if the members' metadata rules the combination out: a cycle, a conflict, a missing requirement."""
    algorithms = {member.name: member.algorithm for member in members}
    for event in Event:
        present = {m.name: m.algorithm for m in members if event in m.events}
        if len(present) > 1 and (edges := declared_edges(present, event)):
            try:
                stable_sort(list(present), edges)
            except EngineError as error:
                add_note(error, f"at {event.name}")
                raise
    for member in members:
        metadata = getattr(member.algorithm, "metadata", None) or AlgorithmMetadata()
        for reference in metadata.conflicts:
            for other in referred(reference, member.name, algorithms):
                rival = next(m for m in members if m.name == other)
                raise EngineError(
                    f"{_title(member)} can't run together with {_title(rival)}: it declares conflicts={reference!r}"
                )
        for reference in metadata.requires:
            if not referred(reference, member.name, algorithms):
                raise EngineError(f"{_title(member)} requires {reference!r}, and no such algorithm is listed; add one")


def _title(member: Member) -> str:
    return f"{registered_name(member.algorithm)!r} ({describe(member.name, member.distribution)})"


def _member(algorithm: object, name: str, registry: Registry) -> Member:
    record = registry.record_of(algorithm)
    if record is not None and record.status == "disabled":
        raise PluginError(
            f"algorithm {name} is {record.name!r} of {record.distribution} {record.version}, which is disabled: "
            f"{record.reason}; leave it out, or enable it"
        )
    metadata: AlgorithmMetadata = getattr(algorithm, "metadata", None) or AlgorithmMetadata()
    events = frozenset(Event if metadata.events is None else metadata.events)
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
    metadata = getattr(algorithm, "metadata", None)
    if metadata is not None and not isinstance(metadata, AlgorithmMetadata):
        raise ArgumentTypeError(
            f"{type(algorithm).__name__}.metadata is {metadata!r}; it has to be an AlgorithmMetadata(...)"
        )
