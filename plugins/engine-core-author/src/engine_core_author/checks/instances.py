"""Is an instance independent: of another one, and from one run to the next?"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from engine_core.event import Event
from engine_core.randomness import GlobalGenerators
from engine_core.state import State

from ..kit import AlgorithmKit, Fault
from ..probes import Prober, at_events
from ..runs import SEED, Outcome, attempt, described, differing, leaves_of, make_trainer, outcome_of, pairs_of, train

Leaf = tuple[Event, str, str]
"""The second event of a pair, the field, and the path in it."""


def test_two_instances(kit: AlgorithmKit) -> Fault | None:
    """Train with two in one run, twice, and with two in runs that take turns."""
    left: list[Leaf] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # passes may warn about two, and that is fine
        fault = _in_one_run(kit, left)
    fault = fault or _in_turn(kit)
    if fault is None and left:
        event, field, leaf = left[0]
        pytest.skip(
            f"two instances in one run leave {field} {leaf} changed after {event.name}: start/end pairs keep their "
            "order, so the last one puts back what the first had changed; to refuse a second instance declare "
            "tags=('x',), conflicts=('@x',)"
        )
    return fault


def test_second_run(kit: AlgorithmKit) -> Fault | None:
    """Train with an instance that has been in another run, and with a fresh one."""
    used, fresh = kit.make_algorithm(), kit.make_algorithm()
    train(kit, [used], max_duration="3ba", seed=SEED + 1)
    second, first = attempt(kit, [used]), train(kit, [fresh])
    if second.outcome is None:
        return Fault(f"in its second run {described(second.error)}", second.error)
    different = _different(second.outcome, first)
    return Fault(f"a used instance gives different results than a fresh one: {different}") if different else None


def _in_one_run(kit: AlgorithmKit, at_ends: list[Leaf]) -> Fault | None:
    """Train with two instances; what they leave after the end of a start/end pair is added to `at_ends`."""
    books = [_Pairs(pairs_of(kit.make_algorithm())) for _ in range(3)]
    alone, *both = [
        attempt(kit, [Prober(book.look), *[kit.make_algorithm() for _ in range(count)]], callbacks=[book.callback])
        for book, count in zip(books, (1, 2, 2), strict=True)
    ]
    if alone.error is not None:
        raise alone.error
    if both[0].refused and both[1].refused:
        return None
    for run in both:
        if run.outcome is None:
            return Fault(f"with two instances in one run {described(run.error)}", run.error)
    if not both[0].outcome.is_finite():  # type: ignore[union-attr]
        return Fault("with two instances in one run the weights become NaN or infinite")
    left = sorted(books[1].left - books[0].left)
    for event, field, leaf in left:
        if event.is_undo:
            return Fault(f"of what two instances in one run changed, {field} {leaf} is not restored at {event.name}")
    at_ends += left
    different = _different(*(run.outcome for run in both))  # type: ignore[arg-type]
    return Fault(f"two runs with two instances each end with different results: {different}") if different else None


def _in_turn(kit: AlgorithmKit) -> Fault | None:
    """Train two trainers in turn, a batch each, and compare with one that trains alone."""
    (alone,) = _steps(kit, [kit.make_algorithm()])
    for outcome in _steps(kit, [kit.make_algorithm(), kit.make_algorithm()]):
        if different := _different(outcome, alone):
            return Fault(f"a run changes the results of another one at the same time: {different}")
    return None


def _steps(kit: AlgorithmKit, algorithms: Sequence[Any]) -> list[Outcome]:
    trainers = [make_trainer(kit, [algorithm], eval_dataloader=None) for algorithm in algorithms]
    generators = [GlobalGenerators.capture(torch.device("cpu")) for _ in trainers]
    for _ in range(6):
        for place, trainer in enumerate(trainers):
            generators[place].restore()
            trainer.fit("1ba")
            generators[place] = GlobalGenerators.capture(torch.device("cpu"))
    for trainer in trainers:
        trainer.close()
    return [outcome_of(trainer) for trainer in trainers]


def _different(one: Outcome, other: Outcome) -> str | None:
    return differing(one, other, ("weights", "optimizers", "algorithms", "metrics"))


class _Pairs:
    """What all algorithms together changed at the first half of a pair and did not put back at the second.

    A leaf that something else changed in between is not judged.
    """

    def __init__(self, pairs: Sequence[tuple[Event, Event]]) -> None:
        self._first_of = {second: first for first, second in pairs}
        self._events = {event for pair in pairs for event in pair}
        self._seen: dict[tuple[Event, str], dict[tuple[str, str], str]] = {}
        self.left: set[Leaf] = set()
        self.callback = at_events(self._events, self._after)

    def look(self, event: Event, state: State) -> None:
        """Keep what State is before the algorithms of an event."""
        if event in self._events:
            self._seen[event, "before"] = leaves_of(state)

    def _after(self, event: Event, state: State) -> None:
        self._seen[event, "after"] = now = leaves_of(state)
        first = self._first_of.get(event)
        if first is None or (first, "after") not in self._seen:
            return
        original, made = self._seen.pop((first, "before")), self._seen.pop((first, "after"))
        found = self._seen[event, "before"]
        for leaf in {**original, **made}:
            touched = original.get(leaf) != made.get(leaf)
            if touched and found.get(leaf) == made.get(leaf) and now.get(leaf) != original.get(leaf):
                self.left.add((event, *leaf))
