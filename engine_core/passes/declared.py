"""What algorithms declare about each other, as edges of an order."""

from __future__ import annotations

from collections.abc import Mapping

from ..algorithm import Algorithm, algorithm_metadata
from ..event import Event
from ..metadata import ORDERING, AlgorithmMetadata
from ..registry import Registry
from .toposort import Edge

__all__ = ["declared_edges", "referred", "registered_name"]


def registered_name(algorithm: Algorithm) -> str:
    """Return the name that `before` and `after` refer to."""
    return Registry.scan().name_of(algorithm)


def declared_edges(algorithms: Mapping[str, Algorithm], event: Event) -> list[Edge]:
    """Return what the algorithms, by unique name, declare about each other at an event that both list."""
    present = {name: a for name, a in algorithms.items() if _lists(algorithm_metadata(a), event)}
    edges = []
    for name, algorithm in present.items():
        own = algorithm_metadata(algorithm)
        earlier = {"before", "within" if event.is_after_event else "around"}
        for relation in ORDERING:
            for reference in getattr(own, relation):
                for other in referred(reference, name, present):
                    first, second = (name, other) if relation in earlier else (other, name)
                    edges.append(Edge(first, second, f"{name} ({_origin(algorithm)}{relation}={reference!r})"))
    return edges


def _origin(algorithm: Algorithm) -> str:
    """Return who ships an algorithm, with a comma after it; nothing if it is the user's own."""
    registry = Registry.scan()
    owner = registry.distribution_of(algorithm)
    return "" if owner is None else f"{owner} {registry.version_of(owner)}, "


def referred(reference: str, name: str, algorithms: Mapping[str, Algorithm]) -> list[str]:
    """Return the unique names of the others that a registered name or `@tag` in the metadata of `name` means."""
    others = {n: a for n, a in algorithms.items() if n != name}
    if reference.startswith("@"):
        return [n for n, a in others.items() if reference[1:] in algorithm_metadata(a).tags]
    return [n for n, a in others.items() if registered_name(a) == reference]


def _lists(metadata: AlgorithmMetadata, event: Event) -> bool:
    return metadata.events is None or event in metadata.events
