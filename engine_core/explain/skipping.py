"""What doesn't affect the order, and why: passes, declared references, names in a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..event import Event
from ..messages import enumerated
from ..metadata import ORDERING
from ..passes import Member, PassList, referred, table_of
from .explanation import Skipped


def skipped_by(members: Sequence[Member], passes: PassList, events: tuple[str, ...]) -> Iterator[Skipped]:
    """Yield what has no effect at some of the events that algorithms list."""
    if events:
        yield from _disabled(passes, events)
        yield from _elsewhere(passes, events)
        yield from _references(members)
        yield from _unlisted(members, passes)


def _disabled(passes: PassList, events: tuple[str, ...]) -> Iterator[Skipped]:
    for record in passes.registry.records:
        if record.kind == "passes" and record.status == "disabled" and record.distribution in passes.distributions:
            yield Skipped(record.title, f"disabled: {record.reason}", events)


def _elsewhere(passes: PassList, events: tuple[str, ...]) -> Iterator[Skipped]:
    for active in passes.active:
        record = active.record
        absent = tuple(event for event in events if record.events is not None and event not in record.events)
        if absent:
            yield Skipped(record.title, f"runs at {enumerated(record.events or ())} only", absent)


def _references(members: Sequence[Member]) -> Iterator[Skipped]:
    """Yield the declared constraints without effect, since the other algorithm is absent or shares no event."""
    for member in members:
        for relation in ORDERING:
            for reference in getattr(member.metadata, relation):
                others = referred(reference, member, members)
                if any(other.events & member.events for other in others):
                    continue
                what = f"{member.title}: {relation}={reference!r}"
                names = " and ".join(other.name for other in others)
                why = f"{names} shares no event with it" if others else _absent(reference)
                yield Skipped(what, why, tuple(event.value for event in Event if event in member.events))


def _absent(reference: str) -> str:
    return f"no algorithm here has that {'tag' if reference.startswith('@') else 'name'}"


def _unlisted(members: Sequence[Member], passes: PassList) -> Iterator[Skipped]:
    """Yield the names in tables of `explicit_order` that don't run at the event."""
    for active in passes.active:
        for event, names in table_of(active.function).items():
            for name in names:
                named = [member for member in members if member.is_called(name)]
                if not any(event in member.events for member in named):
                    titles = ", ".join(member.title for member in named)
                    why = f"{titles} does not list {event.value}" if named else _absent(name)
                    yield Skipped(f"{active}: {name!r} at {event.value}", why, (event.value,))
