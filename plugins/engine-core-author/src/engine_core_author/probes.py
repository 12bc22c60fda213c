"""How the conformance kit looks into a run: before an event's algorithms, around each apply, and by raising there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from engine_core.algorithm import Algorithm
from engine_core.callback import Callback
from engine_core.event import Event
from engine_core.logger import Logger
from engine_core.metadata import AlgorithmMetadata
from engine_core.state import State

from .audit import Observer


class Prober(Algorithm):
    """Stands first in the list, is asked at each event before the others, and never runs."""

    metadata = AlgorithmMetadata(name="conformance_prober", writes=())

    def __init__(self, look: Callable[[Event, State], None]) -> None:
        self._look = look

    def match(self, event: Event, state: State) -> bool:
        """Show State to the kit."""
        self._look(event, state)
        return False

    def may_rest(self, state: State) -> bool:
        """It always does."""
        return True

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        """Never called."""


class Around(Callback):
    """Enters a context around each apply of some algorithms."""

    def __init__(
        self, subjects: Collection[Any], context: Callable[[Any, str, Event, State], AbstractContextManager[Any]]
    ) -> None:
        self._subjects = {id(subject) for subject in subjects}
        self._context = context

    def around_apply(self, algorithm: Any, name: str, event: Event, state: State) -> AbstractContextManager[Any]:
        """Return the context, or for other algorithms an empty one."""
        return self._context(algorithm, name, event, state) if id(algorithm) in self._subjects else nullcontext()


def at_events(events: Collection[Event], call: Callable[[Event, State], object]) -> Callback:
    """Return a callback that makes this call at each of the events, after the algorithms."""

    def method(event: Event) -> Callable[[Callback, State, Logger], object]:
        return lambda _self, state, _logger: call(event, state)

    return type("AtEvents", (Callback,), {event.value: method(event) for event in events})()  # type: ignore[no-any-return]


def watching(subjects: Collection[Any], observer: Observer) -> list[Callback]:
    """Return callbacks that show an observer each apply of some algorithms, and the ends of pairs."""
    return [Around(subjects, observer.around), at_events([e for e in Event if e.is_after_event], observer.settle)]


class Injected(Exception):  # noqa: N818  it stands for whatever may go wrong
    """What the kit raises in a run on purpose."""


def raise_at(event: Event, time: int) -> Callback:
    """Return a callback that raises when an event fires for the `time`-th time."""
    times = itertools.count(1)

    def count(event: Event, _state: State) -> None:
        if next(times) == time:
            raise Injected(f"raised by the conformance kit at {event.name}")

    return at_events([event], count)
