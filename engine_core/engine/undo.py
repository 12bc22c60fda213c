"""What was begun at the first half of a pair, to be undone if the second can't come; pipelines keep it current."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeAlias

from ..errors import add_note
from ..event import Event
from ..passes import Member
from ..trace import Trace

log = logging.getLogger("engine_core")


class Half(Protocol):
    """The first half of a pair as it ran: the pipeline of its event."""

    def undo(self, name: str) -> None:
        """Let an algorithm that ran here run at the second half."""

    def describe(self, name: str) -> str:
        """Return the name of an algorithm that ran here, with its distribution."""


Ran: TypeAlias = "tuple[Half, Mapping[str, Trace]] | None"
"""The first half as it ran, and the traces of those that ran there."""


class Failure(NamedTuple):
    """What an algorithm raised when it should have undone something, and a description."""

    error: BaseException
    what: str


class Pair:
    """The algorithms that ran at the first half of a pair and have not tried the second."""

    __slots__ = ("ran",)

    def __init__(self) -> None:
        self.ran: Ran = None

    def interrupt(self, half: Half | None, traces: Mapping[str, Trace], failed: str | None) -> None:
        """Keep what is still to undo, after `failed` raised in the first `half`, or in the second (None)."""
        if half is not None:
            self.ran = half, {key: t for key, t in traces.items() if t.run and t.name != failed}
        elif self.ran is not None:
            half, ran = self.ran
            tried = {t.name for t in traces.values() if t.run}
            self.ran = half, {key: t for key, t in ran.items() if t.name not in tried}

    def undo(self, only: Collection[str] | None = None) -> list[Failure]:
        """Let them, or `only` some by unique name, try the second half, the last one first."""
        if self.ran is None:
            return []
        half, ran = self.ran
        chosen = [t for t in ran.values() if only is None or t.name in only]
        left = {key: t for key, t in ran.items() if t not in chosen}
        self.ran = (half, left) if left else None
        failures = []
        for trace in reversed(chosen):
            try:
                half.undo(trace.name)
            except BaseException as error:  # noqa: BLE001  the others must get their turn, Ctrl-C or not
                what = f"{half.describe(trace.name)} could not undo what it did at {trace.event.name}"
                failures.append(Failure(error, what))
        return failures


class Begun:
    """What was begun in an engine and has not ended yet."""

    def __init__(self) -> None:
        self._pairs = {event: Pair() for event in Event if event.is_before_event}

    def pair_of(self, event: Event, members: Sequence[Member]) -> Pair | None:
        """Return the pair that `event` belongs to, or None if no member has both halves."""
        partner = event.partner
        if partner is None or not any({event, partner} <= member.events for member in members):
            return None
        return self._pairs[event if event.is_before_event else partner]

    def now(self) -> dict[Event, Ran]:
        """Return what has begun and not ended, by the first half."""
        return {event: pair.ran for event, pair in self._pairs.items() if pair.ran is not None and pair.ran[1]}

    def forget(self, event: Event) -> None:
        """Treat the pair that `event` closes as ended."""
        if event.is_after_event and event.partner is not None:
            self._pairs[event.partner].ran = None

    def undo(self, events: Collection[Event] = tuple(Event), only: Collection[str] | None = None) -> list[Failure]:
        """Let algorithms undo what they began at `events`, the innermost pair and its last algorithm first."""
        failures = []
        for event in reversed(self._pairs):  # in the order of events, an inner pair comes after the outer one
            if event in events:
                failures += self._pairs[event].undo(only)
        return failures

    def release(self, members: Sequence[Member], successors: Sequence[Member]) -> None:
        """Let algorithms that leave the engine undo what they began; the first error is raised."""
        gone = {member.name for member in members} - {member.name for member in successors}
        for failure in self.undo(only=gone) if gone else ():
            add_note(failure.error, f"{failure.what}, when it left the engine")
            raise failure.error

    def close(self) -> None:
        """Undo what has not ended; errors are logged."""
        for failure in self.undo():
            log.error("%s, when the engine was closed", failure.what, exc_info=failure.error)


def undo_after(error: BaseException, begun: Begun, events: Collection[Event]) -> list[Event]:
    """Let algorithms undo what was begun at `events`; return the events where there was something.

    Exceptions become notes on `error`; others, such as Ctrl-C, are raised after all had their turn.
    """
    undone = [event for event in begun.now() if event in events]
    failures = begun.undo(undone)
    for failure in failures:
        add_note(error, f"after this, {failure.what}: {type(failure.error).__name__}: {failure.error}")
    for failure in failures:
        if not isinstance(failure.error, Exception):
            raise failure.error from error
    return undone


@contextmanager
def restoring(begun: Begun) -> Iterator[None]:
    """If the block raises, let algorithms undo what they began in it."""
    before = begun.now()
    try:
        yield
    except BaseException as error:
        undo_after(error, begun, [event for event, ran in begun.now().items() if ran is not before.get(event)])
        raise
