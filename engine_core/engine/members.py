"""Admit algorithms to an engine: check and name each, then rule out cycles, conflicts and missing requirements."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..algorithm import Algorithm, is_averaging, unique_names
from ..errors import ArgumentError, ArgumentTypeError, EngineError, OrderError, PluginError, add_note, nearest
from ..event import Event
from ..messages import enumerated
from ..passes import Member, declared_edges, referred, stable_sort
from ..registry import Registry, check_algorithm, lacking

_LONG = 8  # a name this long is hardly one slip away from another by chance


def admit(algorithms: Sequence[Algorithm], known: Mapping[int, Member], registry: Registry) -> list[Member]:
    """Return a member for each algorithm; raise one EngineError with all problems if metadata rules out the list."""
    members = take_in(algorithms, known, registry)
    problems = problems_of(members, registry)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        kind = OrderError if all(isinstance(problem, OrderError) for problem in problems) else EngineError
        lines = ["\n".join([str(p), *getattr(p, "__notes__", ())]).replace("\n", "\n  ") for p in problems]
        raise kind("\n".join([f"{len(problems)} things are wrong with these algorithms:", *(f"- {x}" for x in lines)]))
    return members


def take_in(algorithms: Sequence[Any], known: Mapping[int, Member], registry: Registry) -> list[Member]:
    """Return a member for each algorithm of an engine, each checked on its own; known ones keep their member."""
    seen: set[int] = set()
    for place, algorithm in enumerate(algorithms):
        if isinstance(algorithm, type):
            raise ArgumentTypeError(
                f"algorithm {place} is the class {algorithm.__name__}; write {algorithm.__name__}()"
            )
        # Only what is not an algorithm is shown: a `repr` takes longer than all checks, and is the author's code.
        shown = f" ({algorithm!r} of type {type(algorithm).__name__})" if lacking(algorithm, "match", "apply") else ""
        try:
            check_algorithm(algorithm, f"algorithm {place}{shown}")
        except TypeError as error:
            raise ArgumentTypeError(str(error)) from error
        if id(algorithm) in seen:
            raise ArgumentError(f"algorithm {place} ({algorithm!r}) is listed twice; make a second instance instead")
        seen.add(id(algorithm))
    return enlist(algorithms, {key: member for key, member in known.items() if key in seen}, registry)


def enlist(algorithms: Sequence[Algorithm], known: Mapping[int, Member], registry: Registry) -> list[Member]:
    """Return a member for each algorithm: the known one by id, or a new one with a name not yet taken."""
    newcomers = [a for a in algorithms if id(a) not in known]
    names = unique_names(newcomers, [member.name for member in known.values()])
    new = {id(a): Member.of(a, name, registry) for a, name in zip(newcomers, names, strict=True)}
    for member in new.values():
        record = member.record
        if record is not None and record.status == "disabled":
            raise PluginError(
                f"algorithm {member.name} is {record.name!r} of {record.origin}, which is disabled: {record.reason}; "
                "leave it out, or enable it"
            )
    return [known.get(id(a)) or new[id(a)] for a in algorithms]


def overrides(algorithm: Algorithm, name: str) -> bool:
    """Does the class define `name` differently from the base class?"""
    if name in getattr(algorithm, "__dict__", {}):
        return True
    return getattr(type(algorithm), name, None) not in (None, getattr(Algorithm, name))


def problems_of(members: Sequence[Member], registry: Registry) -> list[EngineError]:
    """Return what the members' metadata rules out: each cycle, each conflict, each missing requirement."""
    return [*_cycles(members), *conflicting(members).values(), *_missing(members, registry)]


def _cycles(members: Sequence[Member]) -> Iterator[OrderError]:
    events_of: dict[str, list[Event]] = {}
    for event in Event:
        if edges := declared_edges(members, event):
            try:
                stable_sort([member.name for member in members], edges)
            except OrderError as error:
                events_of.setdefault(str(error), []).append(event)
    for message, events in events_of.items():
        problem = OrderError(message)
        add_note(problem, f"at {enumerated([event.name for event in events])}")
        yield problem


def conflicting(members: Sequence[Member]) -> dict[frozenset[str], EngineError]:
    """Return why two can't run together, by their names."""
    found: dict[frozenset[str], EngineError] = {}
    for member in members:
        for reference in member.metadata.conflicts:
            for other in referred(reference, member, members):
                problem = EngineError(
                    f"{_title(member)} can't run together with {_title(other)}: it declares conflicts={reference!r}; "
                    "leave one of them out"
                )
                found.setdefault(frozenset((member.name, other.name)), problem)
    for member, other in itertools.combinations((m for m in members if is_averaging(m.algorithm)), 2):
        problem = EngineError(
            f"{_title(member)} can't run together with {_title(other)}: an evaluation uses one average of the weights; "
            "leave one of them out"
        )
        found.setdefault(frozenset((member.name, other.name)), problem)
    return found


def _missing(members: Sequence[Member], registry: Registry) -> Iterator[EngineError]:
    for member in members:
        for reference in member.metadata.requires:
            if not referred(reference, member, members):
                meant = meant_by(reference, member, members, registry)
                remedy = f"did you mean {meant!r}?" if meant else _how_to_get(reference, registry)
                what = f"{_title(member)} requires {reference!r}, and no such algorithm is listed"
                yield EngineError(f"{what}; {remedy}")


def _how_to_get(reference: str, registry: Registry) -> str:
    if reference.startswith("@"):
        return "add one with that tag"
    ships = registry.algorithms_named(reference)
    if not ships:
        return "no installed distribution ships it; install one that does, and add it"
    origins = enumerated([str(record.origin) for record in ships])
    disabled = f", where it is disabled: {ships[0].reason}" if all(r.status == "disabled" for r in ships) else ""
    return f"add it, it is in {origins}{disabled}"


def meant_by(reference: str, member: Member, members: Sequence[Member], registry: Registry) -> str | None:
    """Return what a member's reference probably means, if no algorithm has that name but one nearly does.

    That is a class name instead of the registered one, a tag without its `@`, another spelling, or a typo in a long
    name. Short names are often one letter apart, and so are `layers_1` and `layers_2`: these are different names.
    """
    others = [other for other in members if other is not member]
    if reference.startswith("@") or any(other.registered == reference for other in members):
        return None
    for other in others:
        if type(other.algorithm).__name__ == reference:
            return other.registered
    if registry.algorithms_named(reference):
        return None
    if any(reference in other.metadata.tags for other in others):
        return f"@{reference}"
    digits = re.findall(r"\d+", reference)
    names = {_bare(o.registered): o.registered for o in others if re.findall(r"\d+", o.registered) == digits}
    near = nearest(_bare(reference), names, cutoff=0.9 if len(reference) >= _LONG else 1.0)
    return None if near is None else names[near]


def _bare(name: str) -> str:
    return re.sub(r"[_.\-]", "", name).lower()


def _title(member: Member) -> str:
    origin = "" if member.origin is None else f" of {member.origin}"
    return f"{member.registered!r} ({member.name}{origin})"
