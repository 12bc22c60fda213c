"""Does an algorithm leave nothing changed if a signal cuts it at either half of a pair?"""

from __future__ import annotations

import gc
import sys
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any

import pytest

from ...event import Event
from ...state import State
from ..kit import AlgorithmKit, Fault
from ..probes import Around, Places
from ..runs import leaves_of, make_trainer, pairs_of
from .changes import test_restores, test_restores_after_an_exception

MOST = 200
"""How many places are tried, in all halves together."""


def test_interrupted(kit: AlgorithmKit) -> Fault | None:
    """Raise KeyboardInterrupt at each place in both halves of each pair, and look at what is left."""
    if not (pairs := pairs_of(kit.make_algorithm())):
        pytest.skip("its metadata lists no complete pair of events")
    halves = [event for pair in pairs for event in pair]
    for event in halves:
        for place in range(MOST // len(halves)):
            half = _CutHalf(kit.make_algorithm(), event, place)
            left = half.run(kit)
            if not half.places.has_cut:
                break
            if left is not None:
                if test_restores(kit) or test_restores_after_an_exception(kit):
                    pytest.skip("it does not restore without a signal either, which another check reports")
                return Fault(f"after a signal at {event.name}, {half.places.where}, {left}")
    return None


class _CutHalf(AbstractContextManager[None]):
    """Cuts the first `apply` of an algorithm at an event, and compares State before and after; a context around each.

    Judged is what the first half had changed and nothing else has changed since.
    """

    def __init__(self, algorithm: Any, event: Event, place: int) -> None:
        self._algorithm, self._event = algorithm, event
        package = type(algorithm).__module__.partition(".")[0]

        def is_own(frame: FrameType) -> bool:
            return str(frame.f_globals.get("__name__")).partition(".")[0] == package

        self.places = Places(place, is_own)
        self._now: Any = None
        self._before, self._after, self._changed = dict[Any, str](), dict[Any, str](), set[Any]()
        self._left: list[str] | None = None
        self._has_come = False

    def run(self, kit: AlgorithmKit) -> str | None:
        """Train until the cut, and return what it has left changed."""
        watch = Around([self._algorithm], self._around)
        with make_trainer(kit, [self._algorithm], callbacks=[watch], eval_interval="1ba") as trainer:
            try:
                trainer.fit()
            except KeyboardInterrupt as error:
                notes: list[str] = [note for note in getattr(error, "__notes__", ()) if "could not undo" in note]
            else:
                return "no KeyboardInterrupt arrived" if self.places.has_cut else None
            if self._left is None:  # it did not match at the second half
                now = leaves_of(trainer.state)
                self._left = self._differing(now, self._untouched(now))
        if notes:
            return notes[0].removeprefix("after this, ")
        return f"{self._left[0]} stays changed" if self._left else None

    def _around(self, _algorithm: Any, _name: str, event: Event, state: State) -> AbstractContextManager[None]:
        self._now = event, state
        return self if event in (self._event, self._event.partner) and self._left is None else nullcontext()

    def __enter__(self) -> None:
        event, state = self._now
        now = leaves_of(state)
        if event.is_before_event:
            self._before = now
        else:
            self._changed = self._untouched(now)
        if event is self._event and not self._has_come:
            self._has_come = True
            gc.disable()  # its callbacks would be places too, and what they raise is lost
            sys.setprofile(self.places)

    def __exit__(self, kind: object, *raised: object) -> None:
        sys.setprofile(None)
        gc.enable()
        event, state = self._now
        self._after = leaves_of(state)
        if event.is_before_event:
            self._changed = {leaf for leaf, _ in self._before.items() ^ self._after.items()}
        elif kind is None and self.places.has_cut:
            self._left = self._differing(self._after, self._changed)

    def _untouched(self, now: dict[Any, str]) -> set[Any]:
        """Return the changed leaves that are as the algorithm has left them."""
        return {leaf for leaf in self._changed if now.get(leaf) == self._after.get(leaf)}

    def _differing(self, now: dict[Any, str], leaves: set[Any]) -> list[str]:
        return [" ".join(filter(None, leaf)) for leaf in sorted(leaves) if now.get(leaf) != self._before.get(leaf)]
