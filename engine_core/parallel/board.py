"""What the ranks write into the group's store when one has failed: why, and where each of them is. Ends nothing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

_ANSWER_S = 3.0
"""How long to wait for the ranks to say where they are: their threads look each second."""
_READ_S = 2.0
"""How long the rank whose process holds the store lives on for the others to read it."""
_LONGEST, _LONGEST_TRACEBACK = 500, 8000


@dataclass(frozen=True)
class Failure:
    """The first failure of a run.

    Args:
        what: in words that follow "rank 0 ends because".
        traceback: of the rank that failed; empty if it could not tell.
        at: the time, in seconds.
    """

    what: str
    traceback: str = ""
    at: float = 0.0


class Place(NamedTuple):
    """Where the main thread of a rank is, and whether it waits for the others there."""

    name: str
    waits: bool


class Board:
    """The entries of one run in the store of a process group.

    The store may be gone, with the process that holds it: then nothing is written, and nothing is found.
    """

    def __init__(self, store: Any, rank: int, size: int, number: int = 0) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._run = f"engine-core/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{number}"

    def tell(self, what: str, traceback: str, at: float) -> None:
        """Tell the others why the run fails and since when, unless another rank has done so."""
        told = {"what": what[:_LONGEST], "traceback": traceback[-_LONGEST_TRACEBACK:], "at": at}
        self._set("failed", json.dumps(told))

    def told(self) -> Failure | None:
        """Return why the run fails."""
        told = self._get("failed")
        if told is None:
            return None
        self._set(f"read/{self._rank}", "yes")
        return Failure(**told)

    def is_told(self) -> bool:
        """Has a rank failed?"""
        return self._has("failed")

    def is_asked(self) -> bool:
        """Does a rank want to know where the others are?"""
        return self._has("asked")

    def answer(self, place: Place) -> None:
        """Say where this rank is, once."""
        self._set(f"place/{self._rank}", json.dumps(place))

    def ask(self) -> list[Place | None]:
        """Return where each rank is, None for those that did not answer in time."""
        self._set("asked", "yes")
        keys = [f"place/{rank}" for rank in range(self._size)]
        _wait(lambda: self._has(*keys) or self._has("failed"), _ANSWER_S)
        return [None if (found := self._get(key)) is None else Place(*found) for key in keys]

    def let_others_read(self) -> None:
        """Wait for the others, if the store ends with this process."""
        if not self._rank and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            _wait(lambda: self._has(*(f"read/{rank}" for rank in range(1, self._size))), _READ_S)

    def _key(self, name: str) -> str:
        return f"{self._run}/{name}"

    def _has(self, *names: str) -> bool:
        try:
            return bool(self._store.check([self._key(name) for name in names]))
        except RuntimeError:
            return False

    def _get(self, name: str) -> Any:
        with suppress(RuntimeError):
            return json.loads(self._store.get(self._key(name))) if self._has(name) else None
        return None

    def _set(self, name: str, value: str) -> None:
        with suppress(RuntimeError):
            self._store.compare_set(self._key(name), "", value)  # the second to write changes nothing


def in_words(places: Sequence[Place | None], own: int, timeout: str, error: BaseException) -> str:
    """Return why the ranks waited in vain, by where each is; `own` is the rank that asked."""
    if places[own] is None:  # it has just written where it is
        return "the store that the ranks share is gone, with the process that holds it"
    ranks = list(enumerate(places))
    gone = [rank for rank, place in ranks if place is None]
    if gone:
        return f"{_named(gone)} gone"
    if "timed out" not in str(error).lower():
        return f"a message between the ranks failed: {error}"
    late = [rank for rank, place in ranks if place is not None and not place.waits]
    told = [f"rank {rank} is at {place.name}" for rank, place in ranks if place and (rank in late or not late)]
    if not late:
        return f"the ranks waited {timeout} for different messages: {', '.join(told)}"
    return f"{_named(late)} late by more than {timeout}: {', '.join(told)}"


def _named(ranks: list[int]) -> str:
    return f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} are"


def _wait(condition: Callable[[], bool], most_s: float) -> None:
    ends_s = time.monotonic() + most_s
    while not condition() and time.monotonic() < ends_s:
        time.sleep(0.05)
