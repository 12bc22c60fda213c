"""What an engine warns of when it takes algorithms in: writers whose order nobody decided, names that nobody has."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..algorithm import Algorithm
from ..errors import OrderWarning, UnorderedWritersWarning, did_you_mean
from ..event import Event
from ..metadata import ORDERING
from ..passes import Edge, PassList, declared_edges, precedes, registered_name, table_of
from .combination import conflicting, meant_by
from .members import Member, describe

__all__ = ["doubts_about", "warn_of"]

Pair = tuple[Member, Member]

_SHOWN = 3  # events in a message; two that list no events may share all of them

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

Metadata says which fields and which events, not which field at which event, so that much has to be known here.
"""


class Doubt(NamedTuple):
    """What to warn of, and its category."""

    message: str
    category: type[Warning]


def warn_of(members: Sequence[Member], passes: PassList) -> None:
    """Warn of what is doubtful about the order, of each thing once per engine."""
    for message, category in doubts_about(members, passes):
        passes.tell(message, category)


def doubts_about(members: Sequence[Member], passes: PassList) -> list[Doubt]:
    """Return what is doubtful about the order of these algorithms."""
    return [*_unknown_names(members, passes), *_missed_names(members), *_unordered_writers(members, passes)]


def _missed_names(members: Sequence[Member]) -> Iterator[Doubt]:
    """Yield the references that are no constraint, and nearly name somebody here; who is absent is named in vain."""
    for member in members:
        for relation in (*ORDERING, "conflicts"):
            for reference in getattr(member.metadata, relation):
                if meant := meant_by(reference, member, members):
                    title = describe(member.name, member.distribution)
                    yield Doubt(
                        f"{relation}={reference!r} in the metadata of {title} is no constraint: no algorithm here has "
                        f"that name; did you mean {meant!r}?",
                        OrderWarning,
                    )


def _unknown_names(members: Sequence[Member], passes: PassList) -> Iterator[Doubt]:
    """Yield the names in tables of `explicit_order` that no algorithm has; without algorithms there is no telling."""
    tables = [table_of(active.function) for active in passes.active]
    if not members or not any(tables):
        return
    registered = {registered_name(m.algorithm) for m in members}
    known = registered | {type(m.algorithm).__name__ for m in members}
    for table in tables:
        for event, names in table.items():
            for name in names:
                if name not in known:
                    hint = did_you_mean(name, registered)
                    message = f"explicit_order names {name!r} at {event.name}, and no algorithm here has that name"
                    yield Doubt(f"{message}{hint}", OrderWarning)


def _unordered_writers(members: Sequence[Member], passes: PassList) -> Iterator[Doubt]:
    """Yield the pairs that write one field at one event, where nothing but the list says who comes first."""
    declared = {m.name: _declared(m) for m in members}
    writers = [m for m in members if declared[m.name]]
    if len(writers) < 2:
        return
    apart = conflicting(members)
    events_of: dict[Pair, dict[Event, list[str]]] = {}
    for event in Event:
        here = [m for m in writers if event in m.events]
        pairs = [pair for pair in itertools.combinations(here, 2) if _may_clash(pair, declared, event)]
        if pairs:
            present = {m.name: m.algorithm for m in members if event in m.events}
            for pair, now in _open_pairs(pairs, present, passes, event):
                events_of.setdefault(pair, {})[event] = now
    for pair, orders in events_of.items():
        if frozenset((pair[0].name, pair[1].name)) not in apart:
            yield Doubt(_clash(pair, orders, declared), UnorderedWritersWarning)


def _clash(pair: Pair, orders: Mapping[Event, list[str]], declared: Mapping[str, frozenset[str]]) -> str:
    """Say who writes what where, and what to do; the order of the registered names at each event is the one now."""
    events_by_fields: dict[str, list[str]] = {}
    for event in orders:
        events_by_fields.setdefault(" and ".join(sorted(_shared(pair, declared, event))), []).append(event.name)
    what = ", and ".join(f"{fields} at {_enumerated(events)}" for fields, events in events_by_fields.items())
    table = [f"{event.value!r}: {names}" for event, names in orders.items()]
    shown = ", ".join(table if len(table) <= _SHOWN else [*table[:_SHOWN], "..."])
    titles = [describe(member.name, member.distribution) for member in pair]
    everywhere = [t for t, m in zip(titles, pair, strict=True) if m.metadata.events is None]
    return (
        f"{' and '.join(titles)} both write {what}, and nothing but their places in the list "
        "says who comes first: declare before, after, around or within in the metadata of one, or give the order "
        f"yourself with explicit_order({{{shown}}}), in a config with `order:`"
        + "".join(f"; {title} lists no events, which counts as all of them" for title in everywhere)
    )


def _enumerated(names: Sequence[str]) -> str:
    if len(names) > _SHOWN:
        return f"{', '.join(names[:_SHOWN])} and {len(names) - _SHOWN} more"
    return " and ".join(names)


def _declared(member: Member) -> frozenset[str]:
    """Return the fields that an algorithm declares to write."""
    return frozenset(member.metadata.writes or ())


def _shared(pair: Pair, declared: Mapping[str, frozenset[str]], event: Event) -> list[str]:
    """Return the fields that both declare to write, and that there is something to write in at the event."""
    both = declared[pair[0].name] & declared[pair[1].name]
    return [field for field in both if field not in _WRITTEN_AT or event in _WRITTEN_AT[field]]


def _may_clash(pair: Pair, declared: Mapping[str, frozenset[str]], event: Event) -> bool:
    """Do the two write one field? Two of one class have one name: no declaration and no table can tell them apart."""
    first, second = pair
    return type(first.algorithm) is not type(second.algorithm) and bool(_shared(pair, declared, event))


def _open_pairs(
    pairs: Iterable[Pair], present: Mapping[str, Algorithm], passes: PassList, event: Event
) -> Iterator[tuple[Pair, list[str]]]:
    """Yield the pairs whose order depends on the list, with the registered names in the order that they have now.

    That is found by trying other lists: the reversed one, which leaves nothing as it is unless all is settled, then
    for each pair the two in each other's place, first, and last.
    """
    edges = declared_edges(present, event)
    trial = _Trial(present, passes, event, edges)
    for pair in () if trial.is_settled else pairs:
        names = pair[0].name, pair[1].name
        if not trial.is_declared(*names) and trial.is_open(*names):
            first, second = pair if trial.first_is_first(*names) else pair[::-1]
            yield pair, [registered_name(first.algorithm), registered_name(second.algorithm)]


class _Trial:
    """Tries what the passes of an engine make of other lists of the same algorithms."""

    def __init__(self, present: Mapping[str, Algorithm], passes: PassList, event: Event, edges: Sequence[Edge]) -> None:
        self._present, self._passes, self._event, self._edges = present, passes, event, edges
        self._names = list(present)
        self._now = self._order(self._names)
        self._reversed = self._order(self._names[::-1])
        self._later: dict[str, set[str]] = {}
        for edge in edges:
            self._later.setdefault(edge.first, set()).add(edge.second)

    @property
    def is_settled(self) -> bool:
        """Does the list decide nothing?"""
        return self._now == self._reversed

    def first_is_first(self, first: str, second: str) -> bool:
        """Does the first come first, as the list is?"""
        return precedes(first, second, self._now) is not False

    def is_declared(self, first: str, second: str) -> bool:
        """Is one before the other by what is declared, maybe through others?"""
        return second in self._behind(first) or first in self._behind(second)

    def is_open(self, first: str, second: str) -> bool:
        """Does some list turn the two round?"""
        if _differ(first, second, self._now, self._reversed):
            return True
        others = [name for name in self._names if name not in (first, second)]
        swap = {first: second, second: first}
        lists = [self._names, [first, second, *others], [*others, first, second]]
        return any(
            _differ(first, second, self._order(names), self._order([swap.get(n, n) for n in names])) for names in lists
        )

    def _order(self, names: Sequence[str]) -> list[str]:
        """Return the order that a list leads to; empty if a pass fails, which the run itself will tell."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what a pass warns of is for the lists that there are
                present = {name: self._present[name] for name in names}
                order = self._passes.arrange(present, self._event, self._edges)
        except Exception:  # noqa: BLE001  a pass of the user's own may raise anything
            return []
        named = {id(algorithm): name for name, algorithm in self._present.items()}
        return [named[id(algorithm)] for algorithm in order if id(algorithm) in named]

    def _behind(self, name: str) -> set[str]:
        found: set[str] = set()
        ends = [name]
        while ends:
            more = self._later.get(ends.pop(), set()) - found
            found |= more
            ends += more
        return found


def _differ(first: str, second: str, one: Sequence[str], other: Sequence[str]) -> bool:
    """Do the two stand the other way round in two orders, where both have them?"""
    ways = {precedes(first, second, one), precedes(first, second, other)}
    return ways == {True, False}
