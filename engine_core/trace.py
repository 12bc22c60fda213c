"""What an event did: one `Trace` for each algorithm that ran; and what measures it. Knows no algorithms."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from .event import Event

__all__ = ["SpanRecorder", "Trace", "Traces"]


class Trace(NamedTuple):
    """One algorithm at one event.

    Args:
        name: the algorithm's unique name in its engine, such as `Freeze-2`.
        event: the event.
        exit_code: what `apply` returned.
        order: its place among the algorithms that ran, from 0.
        run: False only if an earlier algorithm raised, so this one was never reached.
    """

    name: str
    event: Event
    exit_code: int | None
    order: int
    run: bool


class Traces(OrderedDict[str, Trace]):
    """The traces of one event in running order, under `<algorithm_name>/<EVENT>`, as in `Freeze-2/INIT`."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Return a table for a notebook."""
        from .messages import readable, table_in_html  # noqa: PLC0415  traces alone need no wording

        if not self:
            return "<p>nothing ran</p>"
        rows = [
            (t.order, t.name, t.event.name, readable(repr(t.exit_code)) if t.run else "not reached")
            for t in self.values()
        ]
        return table_in_html(("order", "algorithm", "event", "exit code"), rows)


class SpanRecorder(Protocol):
    """Measures how long the parts of an event take, as the profiler does."""

    def begin(self, span: str) -> None:
        """Open a span that `end` closes."""

    def end(self, span: str) -> None:
        """Close a span if it is open."""

    def span(self, name: str) -> AbstractContextManager[object]:
        """Return a context whose duration is recorded under `name`."""
