"""Which algorithms and callbacks can't be in one engine: cycles, conflicts, missing requirements, unmet needs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from ..algorithm import is_averaging
from ..callback import needs_of
from ..errors import EngineError, OrderError, UnsupportedError, add_note, nearest
from ..event import Event
from ..messages import enumerated
from ..needs import Offers
from ..passes import Member, declared_edges, referred, stable_sort
from ..registry import Registry, display_name

_LONG = 8  # a name this long is hardly one slip away from another by chance


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
        *conflicting(members).values(),
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
    ships = registry.records_of("algorithms", reference)
    if not ships:
        return "no installed distribution ships it; install one that does, and add it"
    origins = enumerated([str(record.origin) for record in ships])
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
    found = [*(metadata.events or ()), *(metadata.writes or ()), *metadata.needs]
    if "create_graph" not in offers.gives and getattr(member.algorithm, "backwards_create_graph", False):
        found.append("create_graph")
    return found


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
    if registry.records_of("algorithms", reference):
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
