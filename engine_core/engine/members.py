"""What an engine is given: each checked and named, what rules a combination out, and what is doubtful in one."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, Literal

from ..algorithm import Algorithm, is_averaging, unique_names
from ..callback import needs_of
from ..errors import (
    ArgumentError,
    ArgumentTypeError,
    EngineError,
    OrderError,
    OrderWarning,
    PluginError,
    UnorderedWritersWarning,
    UnsupportedError,
    add_note,
    did_you_mean,
    nearest,
)
from ..event import Event, events_between
from ..messages import join_words
from ..metadata import ORDERING
from ..needs import Offers
from ..passes import Member, PassList, declared_edges, referred, stable_sort, table_of
from ..registry import Registry, check_plugin, display_name

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


def overrides(algorithm: Algorithm, name: str) -> bool:
    """Does the class define `name` differently from the base class?"""
    if name in getattr(algorithm, "__dict__", {}):
        return True
    return getattr(type(algorithm), name, None) not in (None, getattr(Algorithm, name))


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
        add_note(problem, f"at {join_words([event.name for event in events])}")
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


Pair = tuple[Member, Member]
Doubt = tuple[str, type[Warning]]
"""A warning and its category."""

_SHOWN = 3  # events in a message; two algorithms that list no events share all of them


def _during(*spans: tuple[Event, Event]) -> frozenset[Event]:
    return frozenset(event for span in spans for event in events_between(*span))


_WRITTEN_AT: Mapping[str, frozenset[Event]] = {
    "batch": _during((Event.AFTER_DATALOADER, Event.BATCH_END), (Event.EVAL_BATCH_START, Event.EVAL_BATCH_END)),
    "outputs": _during((Event.AFTER_FORWARD, Event.BATCH_END), (Event.EVAL_AFTER_FORWARD, Event.EVAL_BATCH_END)),
    "loss": _during((Event.AFTER_LOSS, Event.BATCH_END), (Event.EVAL_BATCH_END, Event.EVAL_BATCH_END)),
    "metrics": frozenset({Event.BATCH_CHECKPOINT, Event.EPOCH_CHECKPOINT, Event.FIT_END, Event.EVAL_END}),
}
"""When there is something to write in a field; model, optimizers, schedulers and loss_fn are there all the time.

Metadata lists fields and events, but not which field at which event, so the engine has to know that here.
"""


def doubts_about(members: Sequence[Member], passes: PassList) -> list[Doubt]:
    """Return what is doubtful in the order of these algorithms."""
    return [*_unknown_names(members, passes), *_missed_names(members, passes), *_unordered_writers(members, passes)]


def _missed_names(members: Sequence[Member], passes: PassList) -> Iterator[Doubt]:
    """Yield references that match no algorithm here, but nearly do; naming an absent algorithm is fine."""
    for member in members:
        for relation in (*ORDERING, "conflicts"):
            for reference in getattr(member.metadata, relation):
                if meant := meant_by(reference, member, members, passes.registry):
                    what = f"{relation}={reference!r} in the metadata of {member.title} has no effect"
                    yield f"{what}: no algorithm here has that name; did you mean {meant!r}?", OrderWarning


def _unknown_names(members: Sequence[Member], passes: PassList) -> Iterator[Doubt]:
    """Yield names in `explicit_order` tables that match no algorithm; nothing can be said if there are none."""
    registered = [member.registered for member in members]
    for active in passes.active if members else ():
        for event, names in table_of(active.function).items():
            for name in names:
                if not any(member.is_called(name) for member in members):
                    message = f"explicit_order names {name!r} at {event.name}, but no algorithm here has that name"
                    yield f"{message}{did_you_mean(name, registered)}", OrderWarning


def _unordered_writers(members: Sequence[Member], passes: PassList) -> Iterator[Doubt]:
    """Yield the pairs that write the same field at an event in an order that only the list decides.

    Not those that can't run together, and not two of one class: they share a name, so nothing could order them.
    """
    writes = {m.name: frozenset(m.metadata.writes or ()) for m in members}
    apart = conflicting(members)
    both = {
        pair: shared
        for pair in itertools.combinations([m for m in members if writes[m.name]], 2)
        if (shared := writes[pair[0].name] & writes[pair[1].name])
        and type(pair[0].algorithm) is not type(pair[1].algorithm)
        and frozenset((pair[0].name, pair[1].name)) not in apart
    }
    clashes: dict[Pair, dict[Event, tuple[str, list[str]]]] = {}
    for event in Event if both else ():
        here = {}
        for pair, shared in both.items():
            fields = [field for field in shared if event in _WRITTEN_AT.get(field, Event)]
            if fields and event in pair[0].events and event in pair[1].events:
                here[pair] = " and ".join(sorted(fields))
        for pair, now in _open_pairs([*here], [m for m in members if event in m.events], passes, event):
            clashes.setdefault(pair, {})[event] = here[pair], now
    for pair, found in clashes.items():
        yield _clash(pair, found), UnorderedWritersWarning


def _clash(pair: Pair, found: Mapping[Event, tuple[str, list[str]]]) -> str:
    """Return the warning for a pair, with the remedy; `found` has the fields and the current order at each event."""
    events_by_fields: dict[str, list[str]] = {}
    for event, (fields, _) in found.items():
        events_by_fields.setdefault(fields, []).append(event.name)
    what = ", and ".join(f"{fields} at {join_words(events)}" for fields, events in events_by_fields.items())
    table = [f"{event.value!r}: {names}" for event, (_, names) in found.items()]
    shown = ", ".join(table if len(table) <= _SHOWN else [*table[:_SHOWN], "..."])
    everywhere = [member.title for member in pair if member.metadata.events is None]
    return (
        f"{pair[0].title} and {pair[1].title} both write {what}, and only their positions in the list "
        "decide which runs first: declare before, after, around or within in the metadata of one, or set the order "
        f"with explicit_order({{{shown}}}), in a config with `order:`"
        + "".join(f"; {title} lists no events, which counts as all of them" for title in everywhere)
    )


def _open_pairs(
    pairs: Sequence[Pair], present: Sequence[Member], passes: PassList, event: Event
) -> Iterator[tuple[Pair, list[str]]]:
    """Yield the pairs whose order depends on the list, with the registered names in their current order.

    A pair is settled by declarations, maybe through others, or by passes that put it in the same order for the list and
    for the reversed list. That trial leaves out the declared order, where a third algorithm can drag one of the two
    along, which settles nothing about them.
    """
    behind = _behind(present, event) if pairs else {}
    undeclared = [(a, b) for a, b in pairs if b.name not in behind[a.name] and a.name not in behind[b.name]]
    if not undeclared:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a pass's warnings belong to the run
            orders = [
                passes.arrange(present, event),
                passes.arrange(present, event, declared=False),
                passes.arrange(present[::-1], event, declared=False),
            ]
    except Exception:  # noqa: BLE001  a user's pass may raise anything; the run will show it
        return
    now, ahead, back = ({name: place for place, name in enumerate(order)} for order in orders)
    there = now.keys() & ahead.keys() & back.keys()
    for pair in undeclared:
        one, other = pair[0].name, pair[1].name
        if {one, other} <= there and (ahead[one] < ahead[other]) != (back[one] < back[other]):
            first, second = pair if now[one] < now[other] else pair[::-1]
            yield pair, [first.registered, second.registered]


def _behind(present: Sequence[Member], event: Event) -> dict[str, set[str]]:
    """Return for each name those that declarations put after it, maybe through others."""
    behind: dict[str, set[str]] = {member.name: set() for member in present}
    for edge in declared_edges(present, event):
        behind[edge.first].add(edge.second)
    for between, beyond in behind.items():  # Warshall 1962: paths through each in turn
        for later in behind.values() if beyond else ():
            if between in later:
                later.update(beyond)
    return behind
