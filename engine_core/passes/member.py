"""An algorithm among others, what they declare about each other as edges, and a stable sort by such edges."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..algorithm import Algorithm, algorithm_metadata, unique_names
from ..errors import OrderError, add_note
from ..event import Event
from ..metadata import ORDERING, AlgorithmMetadata
from ..observed import ObservedList
from ..registry import Origin, PluginRecord, Registry, display_name
from ..state import nearest_field


class Edge(NamedTuple):
    """`first` comes before `second`, because `declared_by` says so."""

    first: str
    second: str
    declared_by: str


def stable_sort(names: Sequence[str], edges: Sequence[Edge]) -> list[str]:
    """Sort `names` so that every edge holds, and otherwise keep the given order; raise OrderError for a cycle.

    Each step takes the first name with no predecessor left (Kahn 1962, with the given order as priority).
    """
    place = {name: index for index, name in enumerate(names)}
    edges = [edge for edge in edges if edge.first in place and edge.second in place]
    waits_for = dict.fromkeys(names, 0)
    followers: dict[str, list[str]] = {name: [] for name in names}
    for edge in edges:
        waits_for[edge.second] += 1
        followers[edge.first].append(edge.second)
    ready = [place[name] for name in names if not waits_for[name]]
    heapq.heapify(ready)
    ordered: list[str] = []
    while ready:
        name = names[heapq.heappop(ready)]
        ordered.append(name)
        for follower in followers[name]:
            waits_for[follower] -= 1
            if not waits_for[follower]:
                heapq.heappush(ready, place[follower])
    if len(ordered) < len(names):
        raise OrderError(_describe_cycle({name for name in names if waits_for[name]}, edges))
    return ordered


def _describe_cycle(stuck: set[str], edges: Sequence[Edge]) -> str:
    """Walk against the edges among the stuck names until one repeats, and format that cycle."""
    into = {edge.second: edge for edge in reversed(edges) if edge.first in stuck}
    walk: list[Edge] = []
    seen: dict[str, int] = {}
    name = min(stuck)
    while name not in seen:
        seen[name] = len(walk)
        walk.append(into[name])
        name = into[name].first
    cycle = walk[seen[name] :][::-1]
    lines = [f"  {edge.first} before {edge.second}: declared by {edge.declared_by}" for edge in cycle]
    return "\n".join(["the declared order has a cycle, remove one of these:", *lines])


@dataclass(eq=False, slots=True)
class Member:
    """An algorithm among others.

    Args:
        name: unique among them.
        registered: what `before`, `after` and the like refer to.
        origin: what ships it; None: the user.
        record: the one it is registered under, if any.
        events: those it lists; all if it lists none.
        validated: has it seen the first batch?
        asked: how often it was asked at each event, as far as pipelines have counted; each event at which its answer
            was judged has an entry.
        never_matched: has it never matched, and did no warning say so?
        finished: empty until it says `finish`; observed, so that nothing has to look at it.
    """

    algorithm: Algorithm
    name: str
    registered: str
    origin: Origin | None
    record: PluginRecord | None
    events: frozenset[Event]
    validated: bool = False
    asked: dict[Event, int] = field(default_factory=dict)
    never_matched: bool = True
    finished: ObservedList[bool] = field(default_factory=ObservedList)

    @classmethod
    def of(cls, algorithm: Algorithm, name: str, registry: Registry) -> Member:
        """Identify the algorithm in the registry, once."""
        listed = algorithm_metadata(algorithm).events
        events = frozenset(Event) if listed is None else frozenset(map(Event, listed))
        return cls(algorithm, name, *registry.identify(algorithm), events)

    @property
    def metadata(self) -> AlgorithmMetadata:
        """What the algorithm declares."""
        return algorithm_metadata(self.algorithm)

    @property
    def title(self) -> str:
        """The unique name with its origin."""
        return display_name(self.name, self.origin)

    def is_called(self, name: str) -> bool:
        """Is this its registered name or its class's, which a table of `explicit_order` may use?"""
        return name in (self.registered, type(self.algorithm).__name__)

    def blame(self, error: BaseException, what: str, event: Event) -> None:
        """Note on an exception that this algorithm raised it."""
        add_note(error, f"raised by {what} of algorithm {self.title} at {event.name}{nearest_field(error)}")


def members_of(algorithms: Sequence[Algorithm]) -> list[Member]:
    """Return a member for each algorithm of a plain list, which is what passes are given."""
    registry = Registry.scan()
    return [Member.of(a, name, registry) for a, name in zip(algorithms, unique_names(algorithms), strict=True)]


def declared_edges(members: Sequence[Member], event: Event) -> list[Edge]:
    """Return what the members declare about each other at an event that both list."""
    present = [member for member in members if event in member.events]
    edges = []
    for member in present:
        earlier = {"before", "within" if event.is_after_event else "around"}
        origin = "" if member.origin is None else f"{member.origin}, "
        for relation in ORDERING:
            for reference in getattr(member.metadata, relation):
                by = f"{member.name} ({origin}{relation}={reference!r})"
                for other in referred(reference, member, present):
                    first, second = (member, other) if relation in earlier else (other, member)
                    edges.append(Edge(first.name, second.name, by))
    return edges


def referred(reference: str, member: Member | None, members: Sequence[Member]) -> list[Member]:
    """Return the others that a registered name or `@tag` in the metadata of a member means."""
    others = [other for other in members if other is not member]
    if reference.startswith("@"):
        return [other for other in others if reference[1:] in other.metadata.tags]
    return [other for other in others if other.registered == reference]
