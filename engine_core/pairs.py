"""What was begun at the first half of a pair and has to be undone if the second can't come. Knows no pipeline."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from .event import Event
from .members import Member
from .trace import Trace

__all__ = ["Begun", "Half", "Pair"]


class Begun:
    """What was begun in an engine and not ended yet."""

    def __init__(self) -> None:
        self._pairs = {event: Pair() for event in Event if event.is_before_event}

    def pair_of(self, event: Event, members: Sequence[Member]) -> Pair | None:
        """Return the books of the pair that `event` belongs to, or None if no member has both halves."""
        partner = event.partner
        if partner is None or not any({event, partner} <= member.events for member in members):
            return None
        return self._pairs[event if event.is_before_event else partner]

    @property
    def events(self) -> frozenset[Event]:
        """The first halves at which something was begun."""
        return frozenset(event for event, pair in self._pairs.items() if pair.ran)

    def forget(self, event: Event) -> None:
        """Take the pair that `event` closes for ended."""
        if event.is_after_event and event.partner is not None:
            self._pairs[event.partner].ran = None

    def forget_all(self) -> None:
        """Take everything for ended."""
        for pair in self._pairs.values():
            pair.ran = None

    def undo(self, error: BaseException, events: Collection[Event]) -> None:
        """Let those undo what they began at `events`, the innermost pair and its last algorithm first.

        What goes wrong there becomes a note on `error`.
        """
        for event in reversed(self._pairs):  # in the order of events an inner pair stands after the outer one
            if event in events:
                self._pairs[event].undo(error)


class Half(Protocol):
    """The first half of a pair, as it ran."""

    def undo(self, name: str, error: BaseException) -> None:
        """Let an algorithm try the second half."""


class Pair:
    """Who has run at the first half of a pair and not tried the second: the half that ran, and the traces."""

    __slots__ = ("ran",)

    def __init__(self) -> None:
        self.ran: tuple[Half, Mapping[str, Trace]] | None = None

    def interrupt(self, half: Half | None, traces: Mapping[str, Trace], failed: str) -> None:
        """Keep who has still something to undo, after `failed` raised in the first `half`, or in the second (None)."""
        if half is not None:
            self.ran = half, {key: t for key, t in traces.items() if t.run and t.name != failed}
        elif self.ran is not None:
            half, ran = self.ran
            tried = {t.name for t in traces.values() if t.run}
            self.ran = half, {key: t for key, t in ran.items() if t.name not in tried}

    def undo(self, error: BaseException) -> None:
        """Let those try the second half, the last one first."""
        if self.ran is not None:
            half, ran = self.ran
            self.ran = None
            for trace in reversed(list(ran.values())):
                half.undo(trace.name, error)
