"""What plays no part in the order, and why: passes, declared references, names in a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..engine import Member, describe
from ..event import Event
from ..metadata import ORDERING
from ..passes import PassList, referred, registered_name, table_of
from ..registry import Registry
from .explanation import Skipped

__all__ = ["skipped_by"]


def skipped_by(members: Sequence[Member], passes: PassList, events: tuple[str, ...]) -> Iterator[Skipped]:
    """Yield what plays no part at some of the events that algorithms list."""
    if events:
        yield from _disabled(passes, events)
        yield from _elsewhere(passes, events)
        yield from _references(members)
        yield from _unlisted(members, passes)


def _disabled(passes: PassList, events: tuple[str, ...]) -> Iterator[Skipped]:
    for record in Registry.scan().records:
        if record.kind == "passes" and record.status == "disabled" and record.distribution in passes.distributions:
            title = f"pass {record.name!r} of {record.distribution} {record.version}"
            yield Skipped(title, f"disabled: {record.reason}", events)


def _elsewhere(passes: PassList, events: tuple[str, ...]) -> Iterator[Skipped]:
    for active in passes.active:
        record = active.record
        absent = tuple(event for event in events if record.events is not None and event not in record.events)
        if absent:
            yield Skipped(record.title, f"runs at {listing(record.events or ())} only", absent)


def _references(members: Sequence[Member]) -> Iterator[Skipped]:
    """Yield the declared constraints that hold at no event, since the other one is absent or never there."""
    algorithms = {member.name: member.algorithm for member in members}
    events_of = {member.name: member.events for member in members}
    for member in members:
        for relation in ORDERING:
            for reference in getattr(member.metadata, relation):
                others = referred(reference, member.name, algorithms)
                if any(events_of[other] & member.events for other in others):
                    continue
                what = f"{describe(member.name, member.distribution)}: {relation}={reference!r}"
                why = f"{' and '.join(others)} runs at none of its events" if others else _absent(reference)
                yield Skipped(what, why, tuple(event.value for event in Event if event in member.events))


def _absent(reference: str) -> str:
    return f"no algorithm here has that {'tag' if reference.startswith('@') else 'name'}"


def _unlisted(members: Sequence[Member], passes: PassList) -> Iterator[Skipped]:
    """Yield the names in tables of `explicit_order` that are not there at the event."""
    for active in passes.active:
        for event, names in table_of(active.function).items():
            for name in names:
                named = [m for m in members if name in (registered_name(m.algorithm), type(m.algorithm).__name__)]
                if not any(event in m.events for m in named):
                    title = ", ".join(describe(m.name, m.distribution) for m in named)
                    why = f"{title} does not list {event.value}" if named else _absent(name)
                    yield Skipped(f"{active}: {name!r} at {event.value}", why, (event.value,))


def listing(names: Iterable[str]) -> str:
    """Return the first few names, and how many more there are."""
    shown = list(names)
    if len(shown) > 4:
        shown = [*shown[:3], f"{len(shown) - 3} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if shown[1:] else shown)
