"""The second halves that an exception would skip: what was begun is remembered, and ended all the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from .errors import add_note
from .event import Event
from .members import Member, describe
from .pipeline import Pipeline
from .trace import Trace, Traces

__all__ = ["Begun", "FirstHalf", "SecondHalf"]


class Begun:
    """First halves whose algorithms have run and whose second halves have not, the innermost last."""

    def __init__(self) -> None:
        self._ran: dict[Event, tuple[FirstHalf, Mapping[str, Trace]]] = {}

    def pipeline(self, event: Event, *parts: Any) -> Pipeline:
        """Return the pipeline of an event, made of `parts`: one that keeps these books if its pair needs them."""
        pipeline = Pipeline(event, *parts)
        pair = {event, event.partner}
        if not any(pair <= member.events for member in pipeline.members):
            return pipeline
        half = (FirstHalf if event.is_before_event else SecondHalf)(event, *parts)
        half.begun = self
        return half

    @property
    def events(self) -> frozenset[Event]:
        """The events that were begun."""
        return frozenset(self._ran)

    def begin(self, half: FirstHalf, ran: Mapping[str, Trace]) -> None:
        """Remember the traces of those that have run."""
        self._ran.pop(half.event, None)
        self._ran[half.event] = (half, ran)

    def end(self, first: Event | None, tried: Collection[str] | None = None) -> None:
        """Forget those that have tried their second half, by unique name; None: all of them."""
        if first in self._ran:
            half, ran = self._ran.pop(first)
            if tried is not None:
                self._ran[first] = half, {key: trace for key, trace in ran.items() if trace.name not in tried}

    def undo(self, error: BaseException, events: Collection[Event]) -> None:
        """Run the second halves of what was begun, the innermost pair and its last algorithm first.

        What goes wrong there becomes a note on `error`.
        """
        for event in reversed([event for event in self._ran if event in events]):
            half, ran = self._ran.pop(event)
            for trace in reversed(list(ran.values())):
                half.undo(trace.name, error)


class FirstHalf(Pipeline):
    """The pipeline of an event that opens a pair to which one algorithm at least listens on both sides."""

    begun: Begun

    def run(self, traces: Traces) -> None:
        """Run, and remember who has run to the end."""
        try:
            super().run(traces)
        except BaseException:
            self.begun.begin(self, {key: t for key, t in traces.items() if t.run and t.name != self.failed})
            raise
        self.begun.begin(self, traces)

    def undo(self, name: str, error: BaseException) -> None:
        """Let an algorithm that has run here run at the other half of the pair, if it matches there."""
        member = self._named[name]
        partner: Any = self.event.partner
        if partner not in member.events:
            return
        try:
            if member.algorithm.match(partner, self.state):
                self._actor(member).apply(partner, self.state, self.logger)
        except Exception as failure:
            title = describe(member.name, member.distribution)
            add_note(
                error,
                f"after this, {title} could not undo at {partner.name} what it did at {self.event.name}: "
                f"{type(failure).__name__}: {failure}",
            )


class SecondHalf(Pipeline):
    """The pipeline of the event that closes such a pair."""

    begun: Begun

    def run(self, traces: Traces) -> None:
        """Run, and forget who has undone what it did."""
        try:
            super().run(traces)
        except BaseException:
            self.begun.end(self.event.partner, [trace.name for trace in traces.values() if trace.run])
            raise
        self.begun.end(self.event.partner)
