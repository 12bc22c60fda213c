"""What an engine warns of when it takes algorithms in: writers whose order nobody decided, names that nobody has."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from .algorithm import Algorithm
from .course import precedes
from .errors import OrderWarning, UnorderedWritersWarning, did_you_mean
from .event import Event
from .members import Member, describe
from .metadata import AlgorithmMetadata
from .order import PassList
from .ordering import Edge
from .passes import declared_edges, registered_name, table_of

__all__ = ["caution", "cautions_of"]

Pair = tuple[Member, Member]


class Caution(NamedTuple):
    """What to warn of, and its category."""

    message: str
    category: type[Warning]


def caution(members: Sequence[Member], passes: PassList) -> None:
    """Warn of what is doubtful about the order, of each thing once per engine."""
    for message, category in cautions_of(members, passes):
        passes.tell(message, category)


def cautions_of(members: Sequence[Member], passes: PassList) -> list[Caution]:
    """Return what is doubtful about the order of these algorithms."""
    return [*_unknown_names(members, passes), *_unordered_writers(members, passes)]


def _unknown_names(members: Sequence[Member], passes: PassList) -> Iterator[Caution]:
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
                    yield Caution(f"{message}{hint}", OrderWarning)


def _unordered_writers(members: Sequence[Member], passes: PassList) -> Iterator[Caution]:
    """Yield the pairs that write one field at one event, where nothing but the list says who comes first."""
    declared = {m.name: _declared(m) for m in members}
    writers = [m for m in members if declared[m.name]]
    if len(writers) < 2:
        return
    events_of: dict[Pair, dict[Event, list[str]]] = {}
    for event in Event:
        here = [m for m in writers if event in m.events]
        pairs = [pair for pair in itertools.combinations(here, 2) if _may_clash(pair, declared)]
        if pairs:
            present = {m.name: m.algorithm for m in members if event in m.events}
            for pair, now in _open_pairs(pairs, present, passes, event):
                events_of.setdefault(pair, {})[event] = now
    for (first, second), orders in events_of.items():
        fields = " and ".join(sorted(declared[first.name] & declared[second.name]))
        yield Caution(
            f"{describe(first.name, first.distribution)} and {describe(second.name, second.distribution)} both write "
            f"{fields} at {' and '.join(event.name for event in orders)}, and nothing but their places in the list "
            "says who comes first: declare before or after in the metadata of one, or give the order yourself with "
            f"explicit_order({ {event.value: names for event, names in orders.items()} }), in a config with `order:`",
            UnorderedWritersWarning,
        )


def _declared(member: Member) -> frozenset[str]:
    """Return the fields that an algorithm declares to write, if it also says at which events."""
    metadata = getattr(member.algorithm, "metadata", None) or AlgorithmMetadata()
    return frozenset(metadata.writes or ()) if metadata.events is not None else frozenset()


def _may_clash(pair: Pair, declared: Mapping[str, frozenset[str]]) -> bool:
    """Do the two write one field? Two of one class have one name: no declaration and no table can tell them apart."""
    first, second = pair
    if type(first.algorithm) is type(second.algorithm):
        return False
    return bool(declared[first.name] & declared[second.name])


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
