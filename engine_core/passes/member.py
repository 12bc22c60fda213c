"""An algorithm among others, with what is asked about it again and again. Passes and engines work on these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..algorithm import Algorithm, algorithm_metadata, unique_names
from ..errors import add_note
from ..event import Event
from ..metadata import AlgorithmMetadata
from ..registry import Origin, Registry, title

__all__ = ["Member", "members_of"]


@dataclass(eq=False, slots=True)
class Member:
    """An algorithm among others.

    Args:
        name: unique among them.
        registered: what `before`, `after` and the like refer to.
        origin: who ships it; None: the user.
        events: those that it lists, all if it lists none.
        validated: has it looked at the first batch?
    """

    algorithm: Algorithm
    name: str
    registered: str
    origin: Origin | None
    events: frozenset[Event]
    validated: bool = False

    @classmethod
    def of(cls, algorithm: Algorithm, name: str, registry: Registry) -> Member:
        """Ask the registry who it is, once."""
        listed = algorithm_metadata(algorithm).events
        events = frozenset(Event) if listed is None else frozenset(map(Event, listed))
        return cls(algorithm, name, registry.name_of(algorithm), registry.origin_of(algorithm), events)

    @property
    def metadata(self) -> AlgorithmMetadata:
        """What the algorithm declares."""
        return algorithm_metadata(self.algorithm)

    @property
    def title(self) -> str:
        """The unique name with who ships it."""
        return title(self.name, self.origin)

    def is_called(self, name: str) -> bool:
        """Is this its registered name, or that of its class, as a table of `explicit_order` may have it?"""
        return name in (self.registered, type(self.algorithm).__name__)

    def blame(self, error: BaseException, what: str, event: Event) -> None:
        """Note on an exception that this algorithm raised it."""
        add_note(error, f"raised by {what} of algorithm {self.title} at {event.name}")


def members_of(algorithms: Sequence[Algorithm]) -> list[Member]:
    """Return a member for each algorithm of a list that comes without: passes are given plain algorithms."""
    registry = Registry.scan()
    return [Member.of(a, name, registry) for a, name in zip(algorithms, unique_names(algorithms), strict=True)]
