"""What algorithms declare about each other, as edges of an order."""

from __future__ import annotations

from collections.abc import Sequence

from ..event import Event
from ..metadata import ORDERING
from .member import Member
from .toposort import Edge

__all__ = ["declared_edges", "referred"]


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
