"""Can an algorithm be saved, and a run with it be resumed?"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from engine_core.callback import Callback
from engine_core.event import Event
from engine_core.loop import prepare_to_load
from engine_core.randomness import GlobalGenerators

from ..audit import changed_leaves, fingerprint
from ..kit import AlgorithmKit, Fault
from ..probes import at_events
from ..runs import Outcome, copied, difference, differing, make_trainer, outcome_of, state_of


def test_state_dict(kit: AlgorithmKit) -> Fault | None:
    """Save at the start, in mid-run and at the end, and load into fresh instances."""
    algorithm: Any = kit.make_algorithm()
    saved: list[tuple[str, Any, dict[str, str]]] = []

    def save(where: str) -> None:
        state = state_of(algorithm)
        saved.append((where, state, fingerprint(state)))

    saver = at_events([Event.BATCH_END], lambda _, state: save(f"after {state.timestamp.batch} batches"))
    with make_trainer(kit, [algorithm], callbacks=[saver]) as trainer:
        save("at the start")
        trainer.fit()
    for where, state, digests in saved:
        if not isinstance(state, dict) or (problem := _foreign(state, "state_dict()")):
            return Fault(f"{where} {problem if isinstance(state, dict) else f'state_dict() is {state!r}'}")
        if changed := changed_leaves(digests, fingerprint(state)):
            return Fault(f"what state_dict() returned {where} was changed later by the run: {', '.join(changed[:3])}")
    return next((fault for place in (0, -1) if (fault := _taken_back(kit, *saved[place][:2]))), None)


def test_resume(kit: AlgorithmKit) -> Fault | None:
    """Train 3 epochs, then again from what was saved after the first, and from what that run saved after the second.

    Then from what was saved within the second epoch, with a loader that continues there.
    """
    whole, at_ends, within = _run_from(kit, None)
    if not at_ends:
        pytest.skip("the run ended within its first epoch, so there is nothing to resume from")
    for number in ("first", "second"):
        if at_ends:
            resumed, at_ends, _ = _run_from(kit, at_ends[0])
            if fault := _otherwise(resumed, whole, f"after the {number} epoch"):
                return fault
    if not within:
        return None
    resumed, *_ = _run_from(kit, within[0])
    return _otherwise(resumed, whole, f"after {within[0].timestamp.batch_in_epoch} batches of its second epoch")


def _otherwise(resumed: Outcome, whole: Outcome, when: str) -> Fault | None:
    if different := differing(resumed, whole, ("weights", "optimizers", "algorithms")):
        return Fault(f"the run that was resumed {when} ended differently from the uninterrupted one: {different}")
    return None


def _foreign(value: Any, path: str) -> str | None:
    """Say what in a state_dict is neither a tensor nor JSON."""
    if value is None or isinstance(value, torch.Tensor) or type(value) in (bool, int, float, str):
        return None
    if isinstance(value, dict) and not hasattr(type(value), "__missing__"):  # an OrderedDict is as good
        if wrong := [key for key in value if type(key) is not str]:
            return (
                f"{path} has the key {wrong[0]!r}, which JSON turns into a string: save [key, value] pairs, "
                "list(mapping.items()), and take them back with dict(pairs)"
            )
        return next((p for key, v in value.items() if (p := _foreign(v, f"{path}[{key!r}]"))), None)
    if type(value) is list:
        return next((p for i, v in enumerate(value) if (p := _foreign(v, f"{path}[{i}]"))), None)
    return f"{path} is a {type(value).__module__}.{type(value).__qualname__}, neither a tensor nor a JSON value"


def _taken_back(kit: AlgorithmKit, where: str, state: Any) -> Fault | None:
    """Load a state into a fresh instance in a new run, and save it again."""
    fresh: Any = kit.make_algorithm()
    with make_trainer(kit, [fresh]):
        if hasattr(fresh, "load_state_dict"):
            try:
                fresh.load_state_dict(_through_json(state))
            except Exception as error:  # noqa: BLE001
                return Fault(
                    f"load_state_dict raised {type(error).__name__} ({error}) for what was saved {where}", error
                )
        if different := difference(state_of(fresh), state, "state_dict()"):
            return Fault(f"what was saved {where}, loaded and saved again is not the same: {different}")
    return None


def _through_json(value: Any) -> Any:
    """Return what a checkpoint gives back: the tensors copied, the rest through JSON."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _through_json(v) for key, v in value.items()}
    return [_through_json(v) for v in value] if isinstance(value, list) else json.loads(json.dumps(value))


@dataclass(frozen=True, eq=False)
class _Snapshot:
    """What a checkpoint would hold: copies of everything."""

    outcome: Outcome
    timestamp: Any
    generators: GlobalGenerators
    position: Any


def _run_from(kit: AlgorithmKit, snapshot: _Snapshot | None) -> tuple[Outcome, list[_Snapshot], list[_Snapshot]]:
    """Train to the end of 3 epochs, from the beginning or a snapshot; take new ones after epochs and within one."""
    at_ends, within = list[_Snapshot](), list[_Snapshot]()

    def take(event: Event, state: Any) -> None:
        now = state.timestamp
        middle = max(1, len(state.train_dataloader) // 2)
        if event is Event.EPOCH_CHECKPOINT or (now.epoch == 1 and now.batch_in_epoch == middle):
            at = within if now.batch_in_epoch else at_ends
            position = copied(trainer._session.feed.position(in_epoch=bool(now.batch_in_epoch)))  # noqa: SLF001
            at.append(_Snapshot(outcome_of(trainer), now, GlobalGenerators.capture(torch.device("cpu")), position))

    saver: Callback = at_events([Event.EPOCH_CHECKPOINT, Event.BATCH_CHECKPOINT], take)
    with make_trainer(kit, [kit.make_algorithm()], callbacks=[saver], max_duration="3ep") as trainer:
        if snapshot is not None:
            _restore(trainer, snapshot)
        trainer.fit()
        return outcome_of(trainer), at_ends, within


def _restore(trainer: Any, snapshot: _Snapshot) -> None:
    """Put a snapshot into a trainer that has not begun, fire AFTER_LOAD, and give the loop the rest of the epoch."""
    state, outcome = trainer.state, snapshot.outcome
    prepare_to_load(trainer.engine, outcome.weights)
    state.model.load_state_dict(outcome.weights)
    for optimizer, saved in zip(state.optimizers, outcome.optimizers, strict=True):
        optimizer.load_state_dict(copy.deepcopy(saved))
    for algorithm, saved in zip(state.algorithms, outcome.algorithms, strict=True):
        if hasattr(algorithm, "load_state_dict"):
            algorithm.load_state_dict(copied(saved))
    state.timestamp, state.metrics = snapshot.timestamp, dict(outcome.metrics)
    trainer.engine.run_event(Event.AFTER_LOAD)
    session = trainer._session  # noqa: SLF001  there is no public way yet
    session.batches = session.feed.resume(snapshot.position)
    snapshot.generators.restore()
