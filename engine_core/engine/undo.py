"""What ran before an exception: what was begun has to be undone, and a note names it; pipelines keep it current."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Collection, Mapping, Sequence
from types import FrameType
from typing import NamedTuple, Protocol, TypeAlias

from ..errors import add_note
from ..event import Event
from ..passes import Member
from ..state import State
from ..time import Timestamp
from ..trace import Trace

_EVENTS = [*Event]
_OF_A_BATCH = [
    *_EVENTS[_EVENTS.index(Event.BEFORE_DATALOADER) : _EVENTS.index(Event.AFTER_TRAIN_BATCH) + 1],
    *_EVENTS[_EVENTS.index(Event.EVAL_BATCH_START) : _EVENTS.index(Event.EVAL_AFTER_FORWARD) + 1],
]
_NAMED = 10
"""How many algorithms a note names."""

log = logging.getLogger("engine_core")


class Half(Protocol):
    """The first half of a pair as it ran: the pipeline of its event."""

    def undo(self, name: str) -> None:
        """Let an algorithm that ran here run at the second half."""

    def describe(self, name: str) -> str:
        """Return the name of an algorithm that ran here, with its distribution."""

    def writes(self, name: str) -> str:
        """Return what an algorithm that ran here declares it writes."""


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

    def interrupt(self, half: Half | None, traces: Mapping[str, Trace], stopped: str | None, *, was_cut: bool) -> None:
        """Keep what is still to undo, after one was `stopped` in the first `half`, or in the second (None).

        One that raised has nothing to undo. One that a signal cut may have begun, or not have undone everything.
        """
        done = {trace.name for trace in traces.values() if trace.run}
        if half is not None:
            begun = done if was_cut else done - {stopped}
            self.ran = half, {key: trace for key, trace in traces.items() if trace.name in begun}
        elif self.ran is not None:
            half, ran = self.ran
            ended = done - {stopped} if was_cut else done
            self.ran = half, {key: trace for key, trace in ran.items() if trace.name not in ended}

    def undo(self, only: Collection[str] | None = None) -> list[Failure]:
        """Let them, or `only` some by unique name, try the second half, the last one first."""
        if self.ran is None:
            return []
        half, ran = self.ran
        left, failures = dict(ran), []
        for key, trace in reversed(list(ran.items())):
            if only is not None and trace.name not in only:
                continue
            try:
                half.undo(trace.name)
            except BaseException as error:  # noqa: BLE001  the others must get their turn, Ctrl-C or not
                what = f"{half.describe(trace.name)} could not undo what it did at {trace.event.name}"
                failures.append(Failure(error, what))
                if not isinstance(error, Exception):
                    continue  # it was cut, and is tried again by an outer guard
            del left[key]  # only now: a signal may come before
            self.ran = (half, left) if left else None
        return failures


class Latest:
    """What ran at an event the last time: where the clocks were, the event's pipeline, and the traces."""

    __slots__ = ("ran",)

    def __init__(self) -> None:
        self.ran: tuple[Timestamp, Timestamp, Half, Mapping[str, Trace]] | None = None


class Begun:
    """What was begun in an engine and has not ended yet, and what ran last at each event."""

    def __init__(self) -> None:
        self._pairs = {event: Pair() for event in Event if event.is_before_event}
        self.latest = {event: Latest() for event in Event}

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


def name_who_ran(error: BaseException, begun: Begun, state: State) -> None:
    """Note on what no listener raised which algorithms had run in that batch, if any."""
    if not isinstance(error, Exception) or any(_runs_an_event(f) for f, _ in traceback.walk_tb(error.__traceback__)):
        return
    named = []
    for event in _OF_A_BATCH:
        at, eval_at, half, traces = begun.latest[event].ran or (None, None, None, {})
        if half is not None and at is state.timestamp and eval_at is state.eval_timestamp:
            named += [f"{name} at {event.name} ({half.writes(name)})" for name in (t.name for t in traces.values())]
    if named:
        last = f" (the last {_NAMED} of {len(named)})" if len(named) > _NAMED else ""
        add_note(error, f"in this batch ran{last}: {', '.join(named[-_NAMED:])}")


def _runs_an_event(frame: FrameType) -> bool:
    return (frame.f_code.co_name, frame.f_globals.get("__name__")) == ("run_event", f"{__package__}.engine")


class Restoring:
    """If the block raises, let algorithms undo what they began in it, and name those that ran.

    A class: a generator's context loses a signal that comes between its entry and the block.
    """

    def __init__(self, begun: Begun, state: State) -> None:
        self._begun, self._state = begun, state

    def __enter__(self) -> None:
        self._before = self._begun.now()
        for latest in self._begun.latest.values():
            latest.ran = None  # in a loop without a clock, this may be the same batch for ever

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            name_who_ran(error, self._begun, self._state)
            now = self._begun.now()
            undo_after(error, self._begun, [event for event, ran in now.items() if ran is not self._before.get(event)])
