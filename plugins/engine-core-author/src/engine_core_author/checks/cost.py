"""What an algorithm costs where it does nothing."""

from __future__ import annotations

from typing import Any

import pytest

from engine_core.event import Event
from engine_core.state import State

from ..kit import AlgorithmKit, Fault
from ..probes import Prober
from ..runs import events_of, make_trainer, trained
from .timing import least_seconds, patiently

MATCH_S = 20e-6
UNMATCHED_S = 0.2e-6
_MATCH_CALLS, _UNMATCHED_CALLS = 400, 8
"""The same for a slow machine, or a traced interpreter, in calls of a function that does nothing."""


def test_match_is_fast(kit: AlgorithmKit) -> Fault | None:
    """Measure `match` at each listed event, in the State of a run."""
    algorithm: Any = kit.make_algorithm()
    bound_s = max(MATCH_S, _MATCH_CALLS * least_seconds(lambda: None, 200, 20))
    listed, measured, found = events_of(algorithm), set[Event](), list[str]()

    def look(event: Event, state: State) -> None:
        if event not in listed or event in measured or found or not (state.timestamp.batch or event is Event.INIT):
            return
        measured.add(event)
        took_s = patiently(lambda: least_seconds(lambda: algorithm.match(event, state), 10, 10), bound_s)
        if took_s > bound_s:
            found.append(f"at {event.name} it takes {took_s * 1e6:.0f} us, the limit is {bound_s * 1e6:.0f} us")

    trained(kit, [Prober(look), algorithm])
    return Fault(found[0]) if found else None


def test_unmatched_cost(kit: AlgorithmKit) -> Fault | None:
    """Fire the events that no algorithm lists, after a short run with the algorithm and one without."""
    bound_s = max(UNMATCHED_S, _UNMATCHED_CALLS * least_seconds(lambda: None, 200, 20))
    with make_trainer(kit, [kit.make_algorithm()]) as trainer, make_trainer(kit, []) as bare:
        listed = {event for algorithm in trainer.state.algorithms for event in events_of(algorithm)}
        unlisted = [event for event in Event if event not in listed and event is not Event.INIT]
        if not unlisted:
            pytest.skip("its metadata lists all events")
        for one in (trainer, bare):
            one.fit("1ba")
        for event in unlisted:
            took_s = patiently(lambda: _extra_seconds(trainer, bare, event), bound_s)  # noqa: B023  called at once
            if took_s > bound_s:
                return Fault(f"{event.name} costs {took_s * 1e6:.2f} us more with it in the run than without")
    return None


def _extra_seconds(trainer: Any, bare: Any, event: Event) -> float:
    """Return how much longer the event takes in the first trainer; both are measured in turn."""
    fire, fire_bare = trainer.engine.run_event, bare.engine.run_event
    with_it, without = [], []
    for _ in range(10):
        with_it.append(least_seconds(lambda: fire(event), 50, 1))
        without.append(least_seconds(lambda: fire_bare(event), 50, 1))
    return min(with_it) - min(without)
