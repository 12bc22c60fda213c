"""What an engine warns about when it admits algorithms: writers in no decided order, names that match nothing."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from ..errors import OrderWarning, UnorderedWritersWarning, did_you_mean
from ..event import Event
from ..messages import enumerated
from ..metadata import ORDERING
from ..passes import Member, PassList, declared_edges, table_of
from .members import conflicting, meant_by

Pair = tuple[Member, Member]

_SHOWN = 3  # events in a message; two algorithms that list no events share all of them

_EVENTS = tuple(Event)


def _during(*spans: tuple[Event, Event]) -> frozenset[Event]:
    """Return the events from the first to the last of each span, as they come in a step."""
    return frozenset(e for a, z in spans for e in _EVENTS[_EVENTS.index(a) : _EVENTS.index(z) + 1])


_WRITTEN_AT: Mapping[str, frozenset[Event]] = {
    "batch": _during((Event.AFTER_DATALOADER, Event.BATCH_END), (Event.EVAL_BATCH_START, Event.EVAL_BATCH_END)),
    "outputs": _during((Event.AFTER_FORWARD, Event.BATCH_END), (Event.EVAL_AFTER_FORWARD, Event.EVAL_BATCH_END)),
    "loss": _during((Event.AFTER_LOSS, Event.BATCH_END), (Event.EVAL_BATCH_END, Event.EVAL_BATCH_END)),
    "metrics": frozenset({Event.BATCH_CHECKPOINT, Event.EPOCH_CHECKPOINT, Event.FIT_END, Event.EVAL_END}),
}
"""When there is something to write in a field; model, optimizers, schedulers and loss_fn are there all the time.

Metadata lists fields and events, but not which field at which event, so the engine has to know that here.
"""


Doubt: TypeAlias = tuple[str, type[Warning]]
"""A warning and its category."""


def warn_of(members: Sequence[Member], passes: PassList) -> None:
    """Warn about what is doubtful in the order, each thing once per engine."""
    for message, category in doubts_about(members, passes):
        passes.warn_once(message, category)


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
    tables = [table_of(active.function) for active in passes.active]
    if not members or not any(tables):
        return
    for table in tables:
        for event, names in table.items():
            for name in names:
                if not any(member.is_called(name) for member in members):
                    hint = did_you_mean(name, [member.registered for member in members])
                    message = f"explicit_order names {name!r} at {event.name}, but no algorithm here has that name"
                    yield f"{message}{hint}", OrderWarning


def _unordered_writers(members: Sequence[Member], passes: PassList) -> Iterator[Doubt]:
    """Yield the pairs that write the same field at an event in an order that only the list decides."""
    declared = {m.name: frozenset(m.metadata.writes or ()) for m in members}
    writers = [m for m in members if declared[m.name]]
    if len(writers) < 2:
        return
    apart = conflicting(members)
    events_of: dict[Pair, dict[Event, list[str]]] = {}
    for event in Event:
        here = [m for m in writers if event in m.events]
        pairs = [pair for pair in itertools.combinations(here, 2) if _may_clash(pair, declared, event)]
        if pairs:
            present = [member for member in members if event in member.events]
            for pair, now in _open_pairs(pairs, present, passes, event):
                events_of.setdefault(pair, {})[event] = now
    for pair, orders in events_of.items():
        if frozenset((pair[0].name, pair[1].name)) not in apart:
            yield _clash(pair, orders, declared), UnorderedWritersWarning


def _clash(pair: Pair, orders: Mapping[Event, list[str]], declared: Mapping[str, frozenset[str]]) -> str:
    """Return the warning for a pair, with the remedy; `orders` has the current order at each event."""
    events_by_fields: dict[str, list[str]] = {}
    for event in orders:
        events_by_fields.setdefault(" and ".join(sorted(_shared(pair, declared, event))), []).append(event.name)
    what = ", and ".join(f"{fields} at {enumerated(events)}" for fields, events in events_by_fields.items())
    table = [f"{event.value!r}: {names}" for event, names in orders.items()]
    shown = ", ".join(table if len(table) <= _SHOWN else [*table[:_SHOWN], "..."])
    everywhere = [member.title for member in pair if member.metadata.events is None]
    return (
        f"{pair[0].title} and {pair[1].title} both write {what}, and only their positions in the list "
        "decide which runs first: declare before, after, around or within in the metadata of one, or set the order "
        f"with explicit_order({{{shown}}}), in a config with `order:`"
        + "".join(f"; {title} lists no events, which counts as all of them" for title in everywhere)
    )


def _shared(pair: Pair, declared: Mapping[str, frozenset[str]], event: Event) -> list[str]:
    """Return the fields that both declare they write, and that can be written at the event."""
    both = declared[pair[0].name] & declared[pair[1].name]
    return [field for field in both if field not in _WRITTEN_AT or event in _WRITTEN_AT[field]]


def _may_clash(pair: Pair, declared: Mapping[str, frozenset[str]], event: Event) -> bool:
    """Do they write the same field? Two of one class share a name: no declaration or table can order them."""
    first, second = pair
    return type(first.algorithm) is not type(second.algorithm) and bool(_shared(pair, declared, event))


def _open_pairs(
    pairs: Sequence[Pair], present: Sequence[Member], passes: PassList, event: Event
) -> Iterator[tuple[Pair, list[str]]]:
    """Yield the pairs whose order depends on the list, with the registered names in their current order.

    A pair is settled by declarations, maybe through others, or by passes that put it in the same order for the list and
    for the reversed list. That trial leaves out the declared order, where a third algorithm can drag one of the two
    along, which settles nothing about them.
    """
    behind = _behind(present, event)
    undeclared = [(a, b) for a, b in pairs if b.name not in behind[a.name] and a.name not in behind[b.name]]
    if not undeclared:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a pass's warnings belong to the run
            now = _places(passes.arrange(present, event))
            ahead = _places(passes.arrange(present, event, declared=False))
            back = _places(passes.arrange(present[::-1], event, declared=False))
    except Exception:  # noqa: BLE001  a user's pass may raise anything; the run will show it
        return
    there = now.keys() & ahead.keys() & back.keys()
    for pair in undeclared:
        one, other = pair[0].name, pair[1].name
        if {one, other} <= there and (ahead[one] < ahead[other]) != (back[one] < back[other]):
            first, second = pair if now[one] < now[other] else pair[::-1]
            yield pair, [first.registered, second.registered]


def _places(names: Sequence[str]) -> dict[str, int]:
    return {name: place for place, name in enumerate(names)}


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
