"""What ran before an exception: what was begun has to be undone, and a note names it; pipelines keep it current."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple, Protocol, TypeAlias

from ..errors import add_note
from ..event import Event, events_between
from ..passes import Member
from ..state import State
from ..time import Timestamp
from ..trace import Trace

_OF_A_BATCH = [
    *events_between(Event.BEFORE_DATALOADER, Event.AFTER_TRAIN_BATCH),
    *events_between(Event.EVAL_BATCH_START, Event.EVAL_AFTER_FORWARD),
]
_NAMED = 10
"""How many algorithms a note names."""

log = logging.getLogger("engine_core")


class FirstHalf(Protocol):
    """The first half of a pair as it ran: the pipeline of its event."""

    def undo(self, name: str) -> None:
        """Let an algorithm that ran here run at the second half."""

    def describe(self, name: str) -> str:
        """Return the name of an algorithm that ran here, with its distribution."""

    def writes(self, name: str) -> str:
        """Return what an algorithm that ran here declares it writes."""


Applied: TypeAlias = "tuple[FirstHalf, Mapping[str, Trace]] | None"
"""The first half as it ran, and the traces of those that ran there."""


class Failure(NamedTuple):
    """What an algorithm raised when it should have undone something, and a description."""

    error: Exception
    what: str


class Pair:
    """The algorithms that ran at the first half of a pair and have not tried the second."""

    __slots__ = ("applied",)

    def __init__(self) -> None:
        self.applied: Applied = None

    def stop(self, half: FirstHalf | None, traces: Mapping[str, Trace], raised: str | None) -> None:
        """Keep what is still to undo after one `raised`, in the first `half` or in the second (None): not its own."""
        ran = {trace.name for trace in traces.values() if trace.run}
        if half is not None:
            self.applied = half, {key: trace for key, trace in traces.items() if trace.name in ran - {raised}}
        elif self.applied is not None:
            half, begun = self.applied
            self.applied = half, {key: trace for key, trace in begun.items() if trace.name not in ran}

    def undo(self, only: Collection[str] | None = None) -> list[Failure]:
        """Let them, or `only` some by unique name, try the second half, the last one first."""
        if self.applied is None:
            return []
        half, ran = self.applied
        rest = {key: trace for key, trace in ran.items() if only is not None and trace.name not in only}
        self.applied, failures = (half, rest) if rest else None, list[Failure]()
        for trace in [trace for key, trace in ran.items() if key not in rest][::-1]:
            try:
                half.undo(trace.name)
            except Exception as error:  # noqa: BLE001  the others must get their turn
                what = f"{half.describe(trace.name)} could not undo what it did at {trace.event.name}"
                failures.append(Failure(error, what))
        return failures


class Latest:
    """What ran at an event the last time: where the clocks were, the event's pipeline, and the traces."""

    __slots__ = ("applied",)

    def __init__(self) -> None:
        self.applied: tuple[Timestamp, Timestamp, FirstHalf, Mapping[str, Trace]] | None = None


class OpenPairs:
    """What algorithms have begun in an engine and not ended yet, and what ran last at each event."""

    def __init__(self) -> None:
        self._pairs = {event: Pair() for event in Event if event.is_before_event}
        self.latest = {event: Latest() for event in Event}

    def pair_of(self, event: Event, members: Sequence[Member]) -> Pair | None:
        """Return the pair that `event` belongs to, or None if no member has both halves."""
        partner = event.partner
        if partner is None or not any({event, partner} <= member.events for member in members):
            return None
        return self._pairs[event if event.is_before_event else partner]

    def now(self) -> dict[Event, Applied]:
        """Return what has begun and not ended, by the first half."""
        return {e: pair.applied for e, pair in self._pairs.items() if pair.applied is not None and pair.applied[1]}

    def forget(self, event: Event) -> None:
        """Treat the pair that `event` closes as ended."""
        if event.is_after_event and event.partner is not None:
            self._pairs[event.partner].applied = None

    def undo(self, events: Collection[Event] = tuple(Event), only: Collection[str] | None = None) -> list[Failure]:
        """Let algorithms undo what they began at `events`, the innermost pair and its last algorithm first."""
        # In the order of events, an inner pair comes after the outer one.
        pairs = [pair for event, pair in reversed(self._pairs.items()) if event in events]
        return [failure for pair in pairs for failure in pair.undo(only)]

    def undo_after(self, error: BaseException, events: Collection[Event]) -> list[Event]:
        """Let algorithms undo what was begun at `events`; what they raise becomes a note on `error`.

        Return the events where there was something.
        """
        undone = [event for event in self.now() if event in events]
        for failure in self.undo(undone):
            add_note(error, f"after this, {failure.what}: {type(failure.error).__name__}: {failure.error}")
        return undone

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

    @contextmanager
    def restoring(self, state: State) -> Iterator[None]:
        """If the block raises, let algorithms undo what they began in it, and name those that ran."""
        before = self.now()
        for latest in self.latest.values():
            latest.applied = None  # in a loop without a clock, this may be the same batch for ever
        try:
            yield
        except BaseException as error:
            self.name_who_ran(error, state)
            self.undo_after(error, [event for event, applied in self.now().items() if applied is not before.get(event)])
            raise

    def name_who_ran(self, error: BaseException, state: State) -> None:
        """Note on what no listener raised which algorithms had run in that batch, if any."""
        if not isinstance(error, Exception) or any(map(_runs_an_event, traceback.walk_tb(error.__traceback__))):
            return
        named = []
        for event in _OF_A_BATCH:
            at, eval_at, half, traces = self.latest[event].applied or (None, None, None, {})
            if half is not None and at is state.timestamp and eval_at is state.eval_timestamp:
                named += [f"{name} at {event.name} ({half.writes(name)})" for name in (t.name for t in traces.values())]
        if named:
            last = f" (the last {_NAMED} of {len(named)})" if len(named) > _NAMED else ""
            add_note(error, f"in this batch ran{last}: {', '.join(named[-_NAMED:])}")


def _runs_an_event(place: tuple[FrameType, int]) -> bool:
    code, module = place[0].f_code, place[0].f_globals.get("__name__")
    return (code.co_name, module) == ("run_event", f"{__package__}.engine")
