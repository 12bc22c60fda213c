"""Does `match` return a bool, change nothing, and is it true only at listed events? Does it matter after `finish`?"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine_core.engine import is_bool
from engine_core.event import Event
from engine_core.messages import readable
from engine_core.observed import ObservedList
from engine_core.randomness import preserve_generators
from engine_core.state import State

from ..audit import changed_leaves, fingerprint, fingerprint_state
from ..declared import misspelt_events
from ..kit import AlgorithmKit, Fault
from ..probes import Prober
from ..runs import copied, difference, differing, events_of, make_trainer, outcome_of, state_of, train

_POSITION = ("timestamp", "eval_timestamp", "dataloader_label", "dataloader_len", "max_duration")


def test_match_returns_bool(kit: AlgorithmKit) -> Fault | None:
    """Ask at each event of a run; the engine itself looks only at the first answer."""
    algorithm: Any = kit.make_algorithm()
    listed, found = events_of(algorithm), list[str]()

    def look(event: Event, state: State) -> None:
        if not found and event in listed and not is_bool(answer := _ask(algorithm, event, state)):
            shown = readable(repr(answer), 80)
            found.append(f"at {event.name} of batch {state.timestamp.batch} it returned {shown}")

    return _fault(kit, [Prober(look), algorithm], found)


def test_match_is_pure(kit: AlgorithmKit) -> Fault | None:
    """Ask again at each event of a run, and compare everything before and after.

    The first answer does not count, so that an algorithm may remember what it computed for the next.
    """
    algorithm: Any = kit.make_algorithm()
    listed, found = events_of(algorithm), list[str]()

    def look(event: Event, state: State) -> None:
        if found or event not in listed:
            return
        first = _ask(algorithm, event, state)
        before, saved = _world(algorithm, state), _saved(algorithm)
        answers = [_ask(algorithm, event, state) for _ in range(2)]
        after = _world(algorithm, state)
        changed = [f"{f}.{leaf}".strip(".") for f in before for leaf in changed_leaves(before[f], after[f])]
        changed += ["its state_dict"] if difference(saved, _saved(algorithm)) else []
        where = f"at {event.name} of batch {state.timestamp.batch}"
        if changed:
            found.append(f"{where} asking changed {', '.join(changed[:3])}")
        elif all(map(is_bool, (first, *answers))) and len({bool(answer) for answer in (first, *answers)}) > 1:
            found.append(f"{where} it answered {first}, then {answers[0]}, then {answers[1]}")

    return _fault(kit, [Prober(look), algorithm], found)


def test_match_only_declared_events(kit: AlgorithmKit) -> Fault | None:
    """Look at its code, and ask for all events that are not listed, at each event of a run and with an empty State."""
    algorithm: Any = kit.make_algorithm()
    for misspelt in misspelt_events(type(algorithm)):
        return Fault(misspelt)
    undeclared = [event for event in Event if event not in events_of(algorithm)]
    if not undeclared:
        pytest.skip("its metadata lists all events")
    found, seen = list[str](), set[Event]()

    def look(now: Event | None, state: State) -> None:
        place = "with an empty State" if now is None else f"in the State of {now.name}"
        for event in undeclared:
            if _is_true(algorithm, event, state):
                found.append(f"match is true at {event.name} {place}, but metadata.events does not list it")

    def look_once(event: Event, state: State) -> None:
        if (event not in seen and state.timestamp.batch > 1) or event is Event.INIT:
            seen.add(event)
            look(event, state)

    look(None, State())
    if not found:
        train(kit, [Prober(look_once), algorithm])
    return Fault(found[0]) if found else None


def test_finish(kit: AlgorithmKit) -> Fault | None:
    """Train with an algorithm that finishes, and with one whose engine does not hear of it and asks on."""
    outcomes = []
    for hears in (True, False):
        algorithm: Any = kit.make_algorithm()
        with make_trainer(kit, [algorithm]) as trainer:
            if not hears:
                algorithm._finished = ObservedList()  # noqa: SLF001  its engine's, which is not to hear
            trainer.fit()
            if not getattr(algorithm, "_finished", ()):
                return None
        outcomes.append(outcome_of(trainer))
    different = differing(outcomes[1], outcomes[0], ("weights", "optimizers", "algorithms", "metrics"))
    return (
        Fault(f"with an engine that asks on after finish(), the run ends differently: {different}")
        if different
        else None
    )


def _fault(kit: AlgorithmKit, algorithms: list[Any], found: list[str]) -> Fault | None:
    """Train, and return the first finding; what a run raises after a finding may come from it."""
    try:
        train(kit, algorithms)
    except Exception:
        if not found:
            raise
    return Fault(found[0]) if found else None


def _ask(algorithm: Any, event: Event, state: State) -> Any:
    """Ask without moving the global generators; another check finds draws from them."""
    with preserve_generators(torch.device("cpu")):
        return algorithm.match(event, state)


def _is_true(algorithm: Any, event: Event, state: State) -> bool:
    """Ask where the engine never does, so that an algorithm may raise."""
    try:
        return bool(_ask(algorithm, event, state))
    except Exception:  # noqa: BLE001
        return False


def _world(algorithm: Any, state: State) -> dict[str, dict[str, str]]:
    """Return the digests of everything that asking must not change."""
    own = dict(getattr(algorithm, "__dict__", {}))
    generators = {name: value.get_state() for name, value in own.items() if isinstance(value, torch.Generator)}
    position = {name: str(getattr(state, name)) for name in _POSITION}
    position["loop.stop_requested"] = str(state.loop.stop_requested)
    members = {"algorithms": list(map(id, state.algorithms)), "callbacks": list(map(id, state.callbacks))}
    mine = fingerprint({**own, **generators})
    return {**fingerprint_state(state), "its attributes": mine, "state": fingerprint({**position, **members})}


def _saved(algorithm: Any) -> Any:
    """Return a copy of its state_dict, None if it has none before INIT."""
    try:
        return copied(state_of(algorithm))
    except Exception:  # noqa: BLE001
        return None
