"""What an engine is given: each checked and named, and what rules a combination out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, Literal

from ..algorithm import Algorithm, is_averaging, unique_names
from ..callback import needs_of
from ..errors import (
    ArgumentError,
    ArgumentTypeError,
    EngineError,
    IdleAlgorithmWarning,
    OrderError,
    PluginError,
    UnsupportedError,
    add_note,
    suggestion,
)
from ..event import Event
from ..messages import join_words, warn
from ..needs import Offers
from ..passes import Member, declared_edges, referred, stable_sort
from ..registry import Registry, check_plugin, display_name
from ..state import State

_CALLED = {"algorithms": "algorithm", "callbacks": "callback", "loggers": "logger destination"}


def check_listed(
    kind: Literal["algorithms", "callbacks", "loggers"], listed: Sequence[Any], known: Container[int] = ()
) -> None:
    """Raise unless a list has instances of this kind, each once; `known`: the ids of those admitted before."""
    for index, item in enumerate(listed):
        place = f"{_CALLED[kind]} {index}"
        if isinstance(item, type):
            raise ArgumentTypeError(f"{place} is the class {item.__name__}; write {item.__name__}()")
        if any(item is other for other in listed[:index]):
            raise ArgumentError(f"{place} ({type(item).__name__}) is listed twice; make a second instance instead")
        try:
            if id(item) not in known:
                check_plugin(kind, item, place)
        except TypeError as error:
            raise ArgumentTypeError(str(error)) from error


def admit(algorithms: Sequence[Any], known: Mapping[int, Member], registry: Registry) -> list[Member]:
    """Return a member for each algorithm of an engine, each checked on its own; known ones keep their member."""
    check_listed("algorithms", algorithms, known)
    listed = {id(algorithm) for algorithm in algorithms}
    return name_members(algorithms, {key: member for key, member in known.items() if key in listed}, registry)


def name_members(algorithms: Sequence[Algorithm], known: Mapping[int, Member], registry: Registry) -> list[Member]:
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


def follow(member: Member, on_finish: Callable[[], None]) -> None:
    """Let an algorithm say `finish` to the engine of this member."""
    if isinstance(member.algorithm, Algorithm):
        member.finished.observe(on_finish)
        object.__setattr__(member.algorithm, "_finished", member.finished)  # past a frozen dataclass, and past a module


def still_asked(members: Sequence[Member]) -> list[Member]:
    """Return those that have not finished."""
    return [member for member in members if not member.finished]


def overrides(algorithm: Algorithm, name: str) -> bool:
    """Does the class define `name` differently from the base class?"""
    if name in getattr(algorithm, "__dict__", {}):
        return True
    return getattr(type(algorithm), name, None) not in (None, getattr(Algorithm, name))


def check_combination(
    members: Sequence[Member], listeners: Sequence[object], offers: Offers, registry: Registry
) -> None:
    """Raise one EngineError with all problems if an engine can't have these algorithms and callbacks in such a loop."""
    problems = problems_of(members, listeners, offers, registry)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        kinds = {type(problem) for problem in problems}
        kind = UnsupportedError if UnsupportedError in kinds else OrderError if kinds == {OrderError} else EngineError
        lines = ["\n".join([str(p), *getattr(p, "__notes__", ())]).replace("\n", "\n  ") for p in problems]
        raise kind("\n".join([f"{len(problems)} things are wrong with this combination:", *(f"- {x}" for x in lines)]))


def problems_of(
    members: Sequence[Member], listeners: Sequence[object], offers: Offers, registry: Registry
) -> list[EngineError]:
    """Return what rules them out: each cycle, conflict and missing requirement, and what the loop does not offer.

    Args:
        listeners: callbacks and logger destinations, or their classes.
    """
    return [
        *_cycles(members),
        *_conflicts(members),
        *_missing(members, registry),
        *_unsupported(members, listeners, offers, registry),
    ]


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
        add_note(problem, f"at {join_words([event.name for event in events])}")
        yield problem


def _conflicts(members: Sequence[Member]) -> list[EngineError]:
    """Return an error for each pair that can't run together, with the first reason."""
    pairs = [
        (member, other, f"it declares conflicts={reference!r}")
        for member in members
        for reference in member.metadata.conflicts
        for other in referred(reference, member, members)
    ]
    averaging = itertools.combinations((m for m in members if is_averaging(m.algorithm)), 2)
    pairs += [(member, other, "an evaluation uses one average of the weights") for member, other in averaging]
    found: dict[frozenset[str], EngineError] = {}
    for one, other, why in pairs:
        told = f"{_title(one)} can't run together with {_title(other)}: {why}; leave one of them out"
        found.setdefault(frozenset((one.name, other.name)), EngineError(told))
    return [*found.values()]


def _missing(members: Sequence[Member], registry: Registry) -> Iterator[EngineError]:
    for member in members:
        for reference in member.metadata.requires:
            if not referred(reference, member, members):
                what = f"{_title(member)} requires {reference!r}, and no such algorithm is listed"
                others = [other.registered for other in members if other is not member]
                yield EngineError(f"{what}; {_how_to_get(reference, others, registry)}")


def _how_to_get(reference: str, others: Sequence[str], registry: Registry) -> str:
    if reference.startswith("@"):
        return "add one with that tag"
    ships = registry.records_of("algorithms", reference)
    if not ships:
        remedy = suggestion(reference, others) or "; install one that does, and add it"
        return f"no installed distribution ships it{remedy}"
    origins = join_words([str(record.origin) for record in ships])
    disabled = f", where it is disabled: {ships[0].reason}" if all(r.status == "disabled" for r in ships) else ""
    return f"add it, it is in {origins}{disabled}"


def _unsupported(
    members: Sequence[Member], listeners: Sequence[object], offers: Offers, registry: Registry
) -> Iterator[UnsupportedError]:
    """Yield an error for each reason why an algorithm or a callback can't work in this loop."""
    wants = [(member.title, _needs_of_algorithm(member, offers)) for member in members]
    for listener in listeners:
        cls = listener if isinstance(listener, type) else type(listener)
        wants.append((display_name(cls.__name__, registry.origin_of(listener)), needs_of(listener)))
    offered = {*offers.events, *offers.writes, *offers.gives}
    for who, needs in wants:
        names_of: dict[str, list[str]] = {}
        for name in dict.fromkeys(needs):
            if name not in offered:
                names_of.setdefault(offers.why.get(name, "this loop does not offer it"), []).append(str(name))
        for why, names in names_of.items():
            yield UnsupportedError(f"{who} can't work in {offers.loop}: no {', '.join(names)}: {why}")


def _needs_of_algorithm(member: Member, offers: Offers) -> list[str]:
    """Return the events, fields and needs of an algorithm; one that lists no events or fields needs none of them."""
    metadata = member.metadata
    found = [*(metadata.events or ()), *metadata.written_fields, *metadata.needs]
    if "create_graph" not in offers.gives and getattr(member.algorithm, "backwards_create_graph", False):
        found.append("create_graph")
    return found


def _title(member: Member) -> str:
    origin = "" if member.origin is None else f" of {member.origin}"
    return f"{member.registered!r} ({member.name}{origin})"


def warn_of_idle(members: Sequence[Member], state: State) -> None:
    """Warn of algorithms that were asked in a training that is over and never matched, each once."""
    for member in members:
        asked = {event.name: times for event, times in member.asked.items() if times}
        if not member.never_matched or not asked:
            continue
        try:
            if hasattr(member.algorithm, "may_rest") and member.algorithm.may_rest(state):
                continue
        except BaseException as error:
            member.blame(error, "may_rest", Event.FIT_END)
            raise
        member.never_matched = False
        times = sum(asked.values())
        warn(
            f"{member.title} was asked {times} {'time' if times == 1 else 'times'} at {join_words([*asked])} "
            "and never matched; if that is as it should be, let its may_rest return True",
            IdleAlgorithmWarning,
        )
