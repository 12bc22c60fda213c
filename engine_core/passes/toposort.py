"""A stable topological sort that can say what asked for which edge. Knows names and edges, no algorithms."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import OrderError


class Edge(NamedTuple):
    """`first` comes before `second`, because `declared_by` says so."""

    first: str
    second: str
    declared_by: str


def stable_sort(names: Sequence[str], edges: Sequence[Edge]) -> list[str]:
    """Sort `names` so that every edge holds, and otherwise keep the given order.

    Each step takes the first name with no predecessor left (Kahn 1962, with the given order as priority).

    Raises:
        OrderError: if the edges form a cycle; the message shows it, and what declared each edge.
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


def who_moved(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Return the fewest names to move to get from one order to the other, of those in both.

    That is all but the longest subsequence that kept its order (Schensted 1961).
    """
    places = {name: place for place, name in enumerate(before)}
    common = [name for name in after if name in places]
    kept: list[list[str]] = [[]]
    for name in common:
        fitting = [run for run in reversed(kept) if not run or places[run[-1]] < places[name]]
        kept.append([*max(fitting, key=len), name])
    longest = max(kept, key=len)
    return [name for name in common if name not in longest]


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
