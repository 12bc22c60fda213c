"""Does an algorithm change only what it declares, and put back at a second half what it changed at the first?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest

from ...event import Event
from ...observer import Finding, Observer
from ..faults import Fault
from ..probes import Injected, Watcher, raise_at
from ..runs import Loader, data_of, make_trainer, metadata_of, pairs_of

if TYPE_CHECKING:
    from ..conformance import AlgorithmConformance

__all__ = ["findings_of", "not_restored", "test_restores", "test_restores_after_an_exception", "test_writes_declared"]


def test_writes_declared(kit: AlgorithmConformance) -> Fault | None:
    """Compare State around each apply in a run, with a loader that gives the same tensors again."""
    algorithm = kit.make_algorithm()
    findings = findings_of(kit, algorithm, data=_Same(data_of(kit)))
    found = [finding for finding in findings if finding.kind in ("undeclared_write", "in_place")]
    if found:
        return Fault(_first(found))
    if metadata_of(algorithm).writes is None:
        pytest.skip("its metadata does not declare what it writes: add writes=(...), or () if it changes nothing")
    return None


def test_restores(kit: AlgorithmConformance) -> Fault | None:
    """Compare State around both halves of each pair in a run."""
    algorithm = kit.make_algorithm()
    if not pairs_of(algorithm):
        pytest.skip("its metadata lists both halves of no pair of events")
    found = not_restored(findings_of(kit, algorithm))
    return Fault(_first(found)) if found else None


def test_restores_after_an_exception(kit: AlgorithmConformance) -> Fault | None:
    """Raise at each event within its pairs, the first and the second time, and look what is left."""
    algorithm = kit.make_algorithm()
    pairs = pairs_of(algorithm)
    if not pairs:
        pytest.skip("its metadata lists both halves of no pair of events")
    known = {_key(finding) for finding in not_restored(findings_of(kit, algorithm))}  # another check tells of these
    for event in sorted({e for pair in pairs for e in _within(*pair)}, key=list(Event).index):
        for time, settings in ((1, {}), (2, {"microbatch_size": 4})):
            left = _left_behind(kit, event, time, settings)
            if unknown := [what for key, what in left if key not in known]:
                return Fault(f"after an exception at {event.name} {unknown[0]}")
    return None


def findings_of(kit: AlgorithmConformance, algorithm: Any, **settings: Any) -> list[Finding]:
    """Train, and return which promises about State were broken."""
    found: list[Finding] = []
    observer = Observer(found.append)
    with make_trainer(kit, [algorithm], callbacks=[Watcher([algorithm], observer)], **settings) as trainer:
        trainer.fit()
    observer.close(trainer.state)
    return found


def not_restored(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that tell of something that was not put back."""
    return [finding for finding in findings if finding.kind == "not_restored"]


def _left_behind(
    kit: AlgorithmConformance, event: Event, time: int, settings: dict[str, Any]
) -> list[tuple[tuple[Any, ...] | None, str]]:
    """Train up to an exception at an event, then say what was not put back, or could not be."""
    algorithm, found = kit.make_algorithm(), list[Finding]()
    observer = Observer(found.append)
    callbacks = [Watcher([algorithm], observer), raise_at(event, time)]
    notes: list[str] = []
    with make_trainer(kit, [algorithm], callbacks=callbacks, **settings) as trainer:
        try:
            trainer.fit()
        except Injected as error:
            notes = [note for note in getattr(error, "__notes__", ()) if "could not undo" in note]
        observer.close(trainer.state)
    return [*((None, note) for note in notes), *((_key(f), _told(f)) for f in not_restored(found))]


def _within(first: Event, second: Event) -> list[Event]:
    """Return the events at which a pair is open: its first half, and those between."""
    order = list(Event)
    return [e for e in order[order.index(first) : order.index(second)] if first.is_eval == e.is_eval]


def _key(finding: Finding) -> tuple[Any, ...]:
    return finding.event, finding.field, finding.leaves


def _told(finding: Finding) -> str:
    return str(finding).rstrip(".")


def _first(found: list[Finding]) -> str:
    return _told(found[0])


class _Same(Loader):
    """Gives the very same batches in each epoch."""

    def __iter__(self) -> Any:
        return iter(self._batches)

    def __init__(self, loader: Loader) -> None:
        super().__init__(list(loader))
