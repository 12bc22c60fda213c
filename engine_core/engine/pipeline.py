"""The algorithms of one event, which is the hot path, and what an exception would leave undone."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeAlias

from ..errors import MatchError, add_note
from ..event import Event, events_between
from ..logger import Logger, Trace, Traces
from ..messages import readable
from ..passes import Member, PassList
from ..state import State
from ..time import Timestamp
from .members import name_members

_OF_A_BATCH = [
    *events_between(Event.BEFORE_DATALOADER, Event.AFTER_TRAIN_BATCH),
    *events_between(Event.EVAL_BATCH_START, Event.EVAL_AFTER_FORWARD),
]
_NAMED = 10
"""How many algorithms a note names."""

log = logging.getLogger("engine_core")


Applied: TypeAlias = "tuple[Pipeline, Mapping[str, Trace]] | None"
"""The first half of a pair as it ran, as the pipeline of its event, and the traces of those that ran there."""

Failure: TypeAlias = "tuple[Exception, str]"
"""What an algorithm raised when it should have undone something, and a description."""


class Pair:
    """The algorithms that ran at the first half of a pair and have not tried the second."""

    __slots__ = ("applied",)

    def __init__(self) -> None:
        self.applied: Applied = None

    def stop(self, half: Pipeline | None, traces: Mapping[str, Trace], raised: str | None) -> None:
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
                failures.append((error, what))
        return failures


class OpenPairs:
    """What algorithms have begun in an engine and not ended yet, and what ran last at each event."""

    def __init__(self) -> None:
        self._pairs = {event: Pair() for event in Event if event.is_before_event}
        self.latest: dict[Event, tuple[Timestamp, Timestamp, Pipeline, Traces]] = {}

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
        for failure, what in self.undo(undone):
            add_note(error, f"after this, {what}: {type(failure).__name__}: {failure}")
        return undone

    def release(self, members: Sequence[Member], successors: Sequence[Member]) -> None:
        """Let algorithms that leave the engine undo what they began; the first error is raised."""
        gone = {member.name for member in members} - {member.name for member in successors}
        for failure, what in self.undo(only=gone) if gone else ():
            add_note(failure, f"{what}, when it left the engine")
            raise failure

    def close(self) -> None:
        """Undo what has not ended; errors are logged."""
        for failure, what in self.undo():
            log.error("%s, when the engine was closed", what, exc_info=failure)

    @contextmanager
    def restoring(self, state: State) -> Iterator[None]:
        """If the block raises, let algorithms undo what they began in it, and name those that ran."""
        before = self.now()
        self.latest.clear()  # in a loop without a clock, this may be the same batch for ever
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
        for event in (event for event in _OF_A_BATCH if event in self.latest):
            at, eval_at, pipeline, traces = self.latest[event]
            if at is state.timestamp and eval_at is state.eval_timestamp:
                named += [f"{trace.name} at {event.name} ({pipeline.writes(trace.name)})" for trace in traces.values()]
        if named:
            last = f" (the last {_NAMED} of {len(named)})" if len(named) > _NAMED else ""
            add_note(error, f"in this batch ran{last}: {', '.join(named[-_NAMED:])}")


def _runs_an_event(place: tuple[FrameType, int]) -> bool:
    code, module = place[0].f_code, place[0].f_globals.get("__name__")
    return (code.co_name, module) == ("run_event", f"{__package__}.engine")


REMEMBERED = 256
"""How many orders an event caches, one for each set of algorithms that matched together."""


class Pipeline:
    """What the algorithms do at one event. It knows nothing about callbacks or the engine.

    Args:
        admitted: the algorithms of the engine, in the user's order.
        watchers: callbacks with a method `around_apply`, entered before each `apply` and left after it.
    """

    def __init__(
        self,
        event: Event,
        state: State,
        logger: Logger,
        passes: PassList,
        admitted: Sequence[Member],
        watchers: Sequence[Any] = (),
    ) -> None:
        self.event = event
        self.state = state
        self.logger = logger
        self.members = tuple(member for member in admitted if event in member.events)
        self.times = 0
        self._asked: Sequence[tuple[Any, Member]] = ()
        self._is_new = True
        validates = event is Event.AFTER_DATALOADER
        self.newcomers = tuple(member for member in admitted if validates and not member.validated)
        self._known = {id(member.algorithm): member for member in admitted}
        self._named: dict[str, Member] = {}
        self._opens = event.is_before_event
        self._pair: Pair | None = None
        self._latest: dict[Event, Any] = {}
        self._passes = passes
        self._watchers = watchers
        self._remembers = passes.is_pure(event)
        self._plans: dict[tuple[Member, ...], list[tuple[Any, str, Trace]]] = {}
        self._other_plans: dict[tuple[Member, ...], list[tuple[Any, str, Trace]]] = {}
        self._around: Callable[[Member], Any] | None = None

    def run_alone(self) -> Traces:
        """Run without other listeners."""
        traces = Traces()
        self.run(traces)
        return traces

    def run(self, traces: Traces) -> None:  # noqa: C901  one frame, since calls dominate an event's cost
        """Ask all members to match, then apply those that do, in order; fill `traces`."""
        if self._is_new:
            self._first_run()
        self.times += 1
        event, state, logger = self.event, self.state, self.logger
        matched = []
        try:
            for algorithm, member in self._asked:
                if algorithm.match(event, state):
                    matched.append(member)
        except BaseException as error:
            member.blame(error, "match", event)
            raise
        if not matched:
            if self._pair is not None:
                self._pair.applied = None
            return
        key = tuple(matched)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan(key)
        try:
            for algorithm, name, trace in plan:
                exit_code = algorithm.apply(event, state, logger)
                traces[name] = trace if exit_code is None else trace._replace(exit_code=exit_code)
        except BaseException as error:
            self._blame(error, plan, traces)
            raise
        self._latest[event] = state.timestamp, state.eval_timestamp, self, traces
        if self._pair is not None:
            self._pair.applied = (self, traces) if self._opens else None
        if logger.destinations:
            logger.log_traces(traces)

    def _plan(self, matched: tuple[Member, ...]) -> list[tuple[Any, str, Trace]]:
        """Return what to apply, with the name and the trace of each."""
        plan: list[tuple[Any, str, Trace]] = []
        for member in matched:
            member.never_matched = False
        if (other := self._other_plans.get(matched)) is not None:  # its order was warned about, if at all
            plan = [(self._actor(self._named[trace.name]), name, trace) for _, name, trace in other]
        else:
            ordered = self._passes.order(matched, self.event)
            for place, member in enumerate(name_members(ordered, self._known, self._passes.registry)):
                self._named[member.name] = member
                trace = Trace(member.name, self.event, None, place, True)
                plan.append((self._actor(member), f"{member.name}/{self.event.name}", trace))
        if self._remembers:
            if len(self._plans) >= REMEMBERED:
                self._plans.clear()
            self._plans[matched] = plan
        return plan

    def link_pairs(self, pairs: OpenPairs) -> None:
        """Keep track in `pairs` of what has run, also for the pairs of which a member has both halves."""
        self._pair, self._latest = pairs.pair_of(self.event, self.members), pairs.latest

    def wrap_each(self, around: Callable[[Member], Any] | None) -> None:
        """Apply what `around` makes of each member, unless a watcher surrounds it; None: the algorithm itself again."""
        if (around is None) != (self._around is None):  # both kinds of plan are kept for the next time
            self._plans, self._other_plans = self._other_plans, self._plans
        self._around = around

    def undo(self, name: str) -> None:
        """Let an algorithm that ran here run at the second half of the pair, if it matches there."""
        member = self._named[name]
        partner: Any = self.event.partner
        if partner not in member.events or not _Judged(member).match(partner, self.state):
            return
        actor = self._actor(member)
        try:
            actor.apply(partner, self.state, self.logger)
        except Exception:
            if not _entered(actor):  # a watcher raised, and the algorithm still has to undo
                member.algorithm.apply(partner, self.state, self.logger)
            raise

    def describe(self, name: str) -> str:
        """Return the name of an algorithm that ran here, with its distribution."""
        return self._named[name].title

    def writes(self, name: str) -> str:
        """Return what an algorithm that ran here declares it writes."""
        writes = self._named[name].metadata.writes
        return "declares no writes" if writes is None else f"writes {', '.join(writes) or 'nothing'}"

    def _actor(self, member: Member) -> Any:
        """Return the algorithm inside its watchers; the first of them is the outermost."""
        if not self._watchers:
            return member.algorithm if self._around is None else self._around(member)
        applied = _Applied(member.algorithm)
        actor: Any = applied
        for watcher in reversed(self._watchers):
            actor = _Watched(actor, applied, member, watcher)
        return actor

    def add_counts(self) -> None:
        """Add to each member how often it was asked here since the last time."""
        for member in self.members:
            if self.event in member.asked:
                member.asked[self.event] += self.times
        self.times = 0

    def _first_run(self) -> None:
        """Let new algorithms validate the first batch, and judge each one's first answer."""
        if self.state.batch is not None:
            self._validate()
        judged = [self.event in member.asked for member in self.members]
        self._asked = [(m.algorithm if j else _Judged(m), m) for m, j in zip(self.members, judged, strict=True)]
        self._is_new = bool(self.newcomers) or not all(judged)

    def _validate(self) -> None:
        """Let new algorithms validate the first batch."""
        for member in self.newcomers:
            if not member.validated:
                try:
                    validate = getattr(member.algorithm, "validate", None)
                    if validate is not None:
                        validate(self.state)
                except BaseException as error:
                    member.blame(error, "validate", self.event)
                    raise
                member.validated = True
        self.newcomers = ()

    def _blame(self, error: BaseException, plan: Sequence[tuple[Any, str, Trace]], traces: Traces) -> None:
        """Note what raised, and leave a trace of the algorithms that were never reached."""
        unreached, raised = [step for step in plan if step[1] not in traces], None
        if unreached:  # else a signal came after the last
            actor, name, trace = unreached.pop(0)
            traces[name] = trace._replace(run=_entered(actor))
            if not (isinstance(actor, _Watched) and actor.applied.returned):
                raised = trace.name
                if _entered(actor):
                    self._named[raised].blame(error, "apply", self.event)
        for _, name, trace in unreached:
            traces[name] = trace._replace(run=False)
        if self._pair is not None:
            self._pair.stop(self if self._opens else None, traces, raised)


class _Judged:
    """An algorithm whose first answer at an event has to be a bool; later ones count by their truth."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def match(self, event: Event, state: State) -> Any:
        """Return the answer.

        Raises:
            MatchError: (a TypeError) if the first one is neither True nor False.
        """
        answer: Any = self._member.algorithm.match(event, state)
        if event not in self._member.asked:
            if not is_bool(answer):
                missing = "; is a `return` missing?" if answer is None else ""
                raise MatchError(
                    f"match of algorithm {self._member.title} returned {readable(repr(answer), 80)} at {event.name}; "
                    f"it has to return True or False{missing}"
                )
            self._member.asked[event] = 0
        return answer


class _Applied:
    """A watched algorithm; it knows how far its `apply` came."""

    def __init__(self, algorithm: Any) -> None:
        self.algorithm = algorithm
        self.entered = self.returned = False

    def apply(self, event: Event, state: State, logger: Logger) -> Any:
        """Apply the algorithm."""
        self.entered = True
        exit_code = self.algorithm.apply(event, state, logger)
        self.returned = True
        return exit_code


class _Watched:
    """An algorithm whose `apply` runs inside a watcher's context."""

    def __init__(self, actor: Any, applied: _Applied, member: Member, watcher: Any) -> None:
        self.applied = applied
        self._actor, self._member, self._watcher = actor, member, watcher

    def apply(self, event: Event, state: State, logger: Logger) -> Any:
        """Apply the algorithm inside the watcher's context; blame the watcher for what it raises itself."""
        applied, told = self.applied, None
        applied.entered = applied.returned = False
        try:
            with self._watcher.around_apply(applied.algorithm, self._member.name, event, state):
                try:
                    return self._actor.apply(event, state, logger)
                except BaseException as error:
                    told = error
                    raise
        except BaseException as error:
            if error is not told:
                where = f"algorithm {self._member.title} at {event.name}"
                add_note(error, f"raised by around_apply of callback {type(self._watcher).__name__} around {where}")
            raise


def _entered(actor: Any) -> bool:
    """Did the algorithm's own `apply` begin?"""
    return not isinstance(actor, _Watched) or actor.applied.entered


def is_bool(answer: Any) -> bool:
    """Is this a bool of Python, or one of NumPy or torch?"""
    try:
        return isinstance(answer if isinstance(answer, bool) else answer.item(), bool)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return False
