"""Does an algorithm change only what it declares, and restore at a second half what it changed at the first?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from engine_core.algorithm import algorithm_metadata
from engine_core.batch import Batches
from engine_core.event import Event
from engine_core.state import State

from ..audit import Finding, Observer
from ..kit import AlgorithmKit, Fault
from ..probes import Around, Injected, Prober, at_events, raise_at, watching
from ..runs import can_split, copied, data_of, difference, events_of, make_trainer, pairs_of, trained


def test_writes_declared(kit: AlgorithmKit) -> Fault | None:
    """Compare State around each apply in a run, with a loader that returns the same tensors again."""
    algorithm = kit.make_algorithm()
    came, ran = Counter[Event](), list[Event]()

    def note(_algorithm: Any, _name: str, event: Event, _state: State) -> AbstractContextManager[None]:
        ran.append(event)
        return nullcontext()

    watchers = [at_events(list(Event), lambda event, _: came.update([event])), Around([algorithm], note)]
    kinds = ("undeclared_write", "in_place")
    declares = algorithm_metadata(algorithm).writes is not None
    for finding in _findings(kit, algorithm, kinds, watchers, data=list(data_of(kit))):
        if declares or finding.kind == "in_place":
            return Fault(_sentence(finding))
    if not ran and any(came[event] for event in events_of(algorithm)):
        return Fault(
            f"it never ran in {came[Event.BATCH_END]} steps of {came[Event.EPOCH_END]} epochs, so the checks have "
            "nothing to judge; return one from make_algorithm that runs within them, or provide more batches"
        )
    if not declares:
        pytest.skip("its metadata does not declare what it writes: add writes=(...), or () if it changes nothing")
    return None


def test_restores(kit: AlgorithmKit) -> Fault | None:
    """Compare State around both halves of each pair in a run, and what is trained around each evaluation."""
    algorithm = kit.make_algorithm()
    evaluates = any(event.is_eval for event in events_of(algorithm))
    if not pairs_of(algorithm) and not evaluates:
        pytest.skip("its metadata lists no complete pair of events, and no event of an evaluation")
    if found := _findings(kit, algorithm, ("not_restored",)):
        return Fault(_sentence(found[0]))
    return _after_evaluation(kit) if evaluates else None


def test_restores_after_an_exception(kit: AlgorithmKit) -> Fault | None:
    """Raise at each event within its pairs, the first and the second time, and look at what is left."""
    algorithm = kit.make_algorithm()
    if not (pairs := pairs_of(algorithm)):
        pytest.skip("its metadata lists no complete pair of events")
    half = max(1, Batches().rows(next(iter(data_of(kit)))) // 2)
    split = {"microbatch_size": half} if can_split(kit, half) else {}
    known = {_key(finding) for finding in _findings(kit, algorithm, ("not_restored",))}  # another check reports these
    for event in sorted({e for pair in pairs for e in _within(*pair)}, key=list(Event).index):
        for time, settings in ((1, {}), (2, split)):
            left = _left_behind(kit, event, time, settings)
            if unknown := [what for key, what in left if key not in known]:
                return Fault(f"after an exception at {event.name} {unknown[0]}")
    return None


def _findings(
    kit: AlgorithmKit, algorithm: Any, kinds: Collection[str], watchers: Sequence[Any] = (), **settings: Any
) -> list[Finding]:
    """Train, and return which promises about State were broken, of these kinds."""
    found: list[Finding] = []
    observer = Observer(found.append)
    trainer = trained(kit, [algorithm], callbacks=[*watching([algorithm], observer), *watchers], **settings)
    observer.close(trainer.state)
    return [finding for finding in found if finding.kind in kinds]


def _left_behind(
    kit: AlgorithmKit, event: Event, time: int, settings: dict[str, Any]
) -> list[tuple[tuple[Any, ...] | None, str]]:
    """Train up to an exception at an event, then return what was not restored, or could not be."""
    algorithm, found = kit.make_algorithm(), list[Finding]()
    observer = Observer(found.append)
    callbacks = [*watching([algorithm], observer), raise_at(event, time)]
    notes: list[str] = []
    with make_trainer(kit, [algorithm], callbacks=callbacks, **settings) as trainer:
        try:
            trainer.fit()
        except Injected as error:
            notes = [note for note in getattr(error, "__notes__", ()) if "could not undo" in note]
    observer.close(trainer.state)  # what belongs to the epoch is undone when the trainer closes
    return [*((None, note) for note in notes), *((_key(f), _sentence(f)) for f in found if f.kind == "not_restored")]


def _after_evaluation(kit: AlgorithmKit) -> Fault | None:
    """Compare weights and the optimizers' state before each evaluation with those after it.

    An optimizer's settings are left out: a learning rate may follow what an evaluation has measured.
    """
    before: dict[str, Any] = {}
    found: list[str] = []

    def learnt(state: State) -> dict[str, Any]:
        model: Any = state.model
        return {
            "model": copied(model.state_dict()),
            "optimizers": [copied(dict(optimizer.state_dict()["state"])) for optimizer in state.optimizers],
        }

    def look(event: Event, state: State) -> None:
        if event is Event.EVAL_START:
            before.update(learnt(state))

    def compare(_event: Event, state: State) -> None:
        if different := difference(before, learnt(state)):
            found.append(f"after an evaluation at {state.timestamp.batch} batches {different} from what was trained")

    trained(kit, [Prober(look), kit.make_algorithm()], callbacks=[at_events([Event.EVAL_END], compare)])
    return Fault(found[0]) if found else None


def _within(first: Event, second: Event) -> list[Event]:
    """Return the events at which a pair is open: its first half, and those between."""
    order = list(Event)
    return [e for e in order[order.index(first) : order.index(second)] if first.is_eval == e.is_eval]


def _key(finding: Finding) -> tuple[Any, ...]:
    return finding.event, finding.field, finding.leaves


def _sentence(finding: Finding) -> str:
    return str(finding).rstrip(".")
