"""Admit the algorithms of an engine together: cycles, conflicts and missing requirements rule a combination out."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence

from ..errors import EngineError, OrderError, add_note
from ..event import Event
from ..passes import declared_edges, referred, registered_name, stable_sort
from ..registry import Registry
from .members import Member, take_in

__all__ = ["admit", "conflicting", "meant_by", "problems_of"]

_LONG = 8  # characters of a name that is hardly another's by one slip


def admit(algorithms: Sequence[object], known: Mapping[int, Member]) -> list[Member]:
    """Return a member for each algorithm of an engine; those that are known already stay who they are.

    Raises:
        ArgumentTypeError: (a TypeError) for what is no algorithm.
        ArgumentError: (a ValueError) for an instance that is listed twice.
        EngineError: for a combination that their metadata rules out.
    """
    members = take_in(algorithms, known)
    check_together(members)
    return members


def check_together(members: Sequence[Member]) -> None:
    """Raise if the members' metadata rules the combination out; the error names all problems at once."""
    problems = problems_of(members)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        kind = OrderError if all(isinstance(problem, OrderError) for problem in problems) else EngineError
        lines = ["\n".join([str(p), *getattr(p, "__notes__", ())]).replace("\n", "\n  ") for p in problems]
        raise kind("\n".join([f"{len(problems)} things are wrong with these algorithms:", *(f"- {x}" for x in lines)]))


def problems_of(members: Sequence[Member]) -> list[EngineError]:
    """Return what the members' metadata rules out: each cycle, each conflict, each missing requirement."""
    return [*_cycles(members), *conflicting(members).values(), *_missing(members)]


def _cycles(members: Sequence[Member]) -> Iterator[OrderError]:
    events_of: dict[str, list[Event]] = {}
    for event in Event:
        present = {m.name: m.algorithm for m in members if event in m.events}
        if len(present) > 1 and (edges := declared_edges(present, event)):
            try:
                stable_sort(list(present), edges)
            except OrderError as error:
                events_of.setdefault(str(error), []).append(event)
    for message, events in events_of.items():
        problem = OrderError(message)
        names = [event.name for event in events[:3]] + ([f"{len(events) - 3} more"] if len(events) > 3 else [])
        add_note(problem, f"at {' and '.join([', '.join(names[:-1]), names[-1]] if names[1:] else names)}")
        yield problem


def conflicting(members: Sequence[Member]) -> dict[frozenset[str], EngineError]:
    """Return why two can't run together, by the names of the two."""
    algorithms = {member.name: member.algorithm for member in members}
    known = {member.name: member for member in members}
    found: dict[frozenset[str], EngineError] = {}
    for member in members:
        for reference in member.metadata.conflicts:
            for other in referred(reference, member.name, algorithms):
                problem = EngineError(
                    f"{_title(member)} can't run together with {_title(known[other])}: it declares "
                    f"conflicts={reference!r}; leave one of them out"
                )
                found.setdefault(frozenset((member.name, other)), problem)
    return found


def _missing(members: Sequence[Member]) -> Iterator[EngineError]:
    algorithms = {member.name: member.algorithm for member in members}
    for member in members:
        for reference in member.metadata.requires:
            if not referred(reference, member.name, algorithms):
                meant = meant_by(reference, member, members)
                remedy = f"did you mean {meant!r}?" if meant else _how_to_get(reference)
                what = f"{_title(member)} requires {reference!r}, and no such algorithm is listed"
                yield EngineError(f"{what}; {remedy}")


def _how_to_get(reference: str) -> str:
    if reference.startswith("@"):
        return "add one with that tag"
    ships = [r for r in Registry.scan().records if r.kind == "algorithms" and r.name == reference]
    if not ships:
        return "no installed distribution ships it; install one that does, and add it"
    origins = " and ".join(f"{r.distribution} {r.version}" for r in ships)
    disabled = f", where it is disabled: {ships[0].reason}" if all(r.status == "disabled" for r in ships) else ""
    return f"add it, it is in {origins}{disabled}"


def meant_by(reference: str, member: Member, members: Sequence[Member]) -> str | None:
    """Return what the reference of a member should have been if it is nobody's name, and nearly that of another.

    That is a class's name for the registered one, a tag without its `@`, another way to write a name, or a slip in a
    long one. Short names are often one letter apart, and so are `layers_1` and `layers_2`: these are different names.
    """
    others = [m for m in members if m is not member]
    names = sorted({registered_name(m.algorithm) for m in others})
    if reference.startswith("@") or reference in (*names, registered_name(member.algorithm)):
        return None
    for other in others:
        if type(other.algorithm).__name__ == reference:
            return registered_name(other.algorithm)
    if any(r.kind == "algorithms" and r.name == reference for r in Registry.scan().records):
        return None
    if any(reference in other.metadata.tags for other in others):
        return f"@{reference}"
    same = [name for name in names if _folded(name) == _folded(reference)]
    near = difflib.get_close_matches(reference.lower(), names, n=1, cutoff=0.9) if len(reference) >= _LONG else []
    return next((name for name in [*same, *near] if not _differ_in_digits(name, reference)), None)


def _folded(name: str) -> str:
    return re.sub(r"[_.\-]", "", name).lower()


def _differ_in_digits(name: str, other: str) -> bool:
    return re.findall(r"\d+", name) != re.findall(r"\d+", other)


def _title(member: Member) -> str:
    name = f"{registered_name(member.algorithm)!r} ({member.name}"
    if member.distribution is None:
        return f"{name})"
    return f"{name} of {member.distribution} {Registry.scan().version_of(member.distribution)})"
