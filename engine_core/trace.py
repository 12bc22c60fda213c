"""What an event did: one `Trace` for each algorithm that ran. Knows nothing of algorithms."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from .event import Event

__all__ = ["Trace", "Traces"]


class Trace(NamedTuple):
    """One algorithm at one event.

    Args:
        name: the algorithm's unique name in its engine, such as `Freeze-2`.
        event: the event.
        exit_code: what `apply` returned.
        order: its place among the algorithms that ran, from 0.
        run: False only where an earlier algorithm raised, so that this one was never reached.
    """

    name: str
    event: Event
    exit_code: int | None
    order: int
    run: bool


class Traces(OrderedDict[str, Trace]):
    """The traces of one event in running order, under `<algorithm_name>/<EVENT>`, as in `Freeze-2/INIT`."""

    __slots__ = ()
