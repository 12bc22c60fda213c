"""What is logged, as plain values; the order in words; values that wait to be sent."""

from __future__ import annotations

import itertools
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

from ..errors import DestinationWarning
from ..event import Event
from ..files import finite
from ..logger import Logger
from ..messages import plural, warn

_LARGEST = 2**63
"""Integers beyond are text: many readers have none, and Python refuses to write very long ones."""


def plain(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values without tensors and arrays: as numbers and lists.

    Example:
        >>> import torch
        >>> plain({"loss": torch.tensor(0.5), "kept": torch.tensor([1, 2]), "who": "me"})
        {'loss': 0.5, 'kept': [1, 2], 'who': 'me'}
    """
    return {str(name): v.tolist() if hasattr(v, "tolist") else v for name, v in metrics.items()}


def in_json(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as JSON can hold them, whatever they are; only a number may still be NaN or infinite.

    Example:
        >>> in_json({"loss": float("nan"), "kept": [1.0, float("inf")], "who": Ellipsis})
        {'loss': nan, 'kept': [1.0, None], 'who': 'Ellipsis'}
    """
    return {str(name): _in_json(value) for name, value in metrics.items()}


def _in_json(value: Any) -> Any:
    try:
        value = value.tolist() if hasattr(value, "tolist") else value
        if value is None or isinstance(value, (float, str)) or (isinstance(value, int) and abs(value) < _LARGEST):
            return value
        return str(value) if isinstance(value, int) else json.loads(json.dumps(finite(value), default=str))
    except Exception:  # noqa: BLE001  it holds itself, say, or is the user's own and can't be shown
        return f"<{type(value).__name__}>"


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return those of the values that are numbers, or tensors and arrays of one element; NaN is a number.

    Example:
        >>> import torch
        >>> numbers({"loss": torch.tensor([[0.5]]), "kept": torch.tensor([1, 2]), "rows": 3, "who": "me"})
        {'loss': 0.5, 'rows': 3}
    """
    found = {}
    for name, value in plain(metrics).items():
        while isinstance(value, list) and len(value) == 1:
            (value,) = value  # noqa: PLW2901  out of its brackets
        if isinstance(value, (int, float)):
            found[name] = value
    return found


def orders(logger: Logger) -> dict[str, str]:
    """Return the order of the algorithms at each event that has some, a line for each with the reason for its place.

    Example:
        >>> orders(Logger())
        {}
    """
    found = {event.value: logger.explain(event) for event in Event}
    return {
        event: "\n".join(f"{place}. {each.algorithm}: {each.why}" for place, each in enumerate(order, 1))
        for event, order in found.items()
        if order
    }


MOST_WAITING = 10_000
"""How many values may wait; beyond that the oldest are dropped."""

_REST = 10
"""After a failure it waits this many times as long as that took, so that a place that hangs can't stop a training."""

T = TypeVar("T")


class Waiting(Generic[T]):
    """What waits to be sent, the oldest first: until `open` is called, until there is enough, or after a failure.

    Args:
        title: the destination's name, for warnings.
        send: sends all that it gets, or raises and has sent nothing.
        at_once: the most that `send` gets; as soon as so many wait, they are sent.
        interval_s: after this time they are sent anyway.

    Example:
        >>> waiting = Waiting("Printer", print, at_once=2)
        >>> waiting.add("early")
        >>> waiting.open()
        >>> waiting.add("later")
        ['early', 'later']
    """

    def __init__(
        self, title: str, send: Callable[[list[T]], object], *, at_once: int = 1_000, interval_s: float = 5.0
    ) -> None:
        self._title, self._send, self._at_once, self._interval_s = title, send, at_once, interval_s
        self._due: deque[tuple[T, int]] = deque()
        self._weight = self._dropped = 0
        self._is_open = self._fails = False
        self._next_s = 0.0

    def open(self, first: Iterable[T] = ()) -> None:
        """Send from now on; `first` are those that a checkpoint kept."""
        self._due.extendleft((item, 1) for item in reversed([*first]))
        self._weight = sum(weight for _, weight in self._due)
        self._is_open, self._next_s = True, time.monotonic() + self._interval_s

    def add(self, *items: T, weight: int = 1) -> None:
        """Let something wait, and send all that waits if it is time to.

        Args:
            weight: for how many values each of these counts.

        Raises:
            Exception: what `send` raises; nothing is lost by that.
        """
        self._due.extend((item, weight) for item in items)
        self._weight += weight * len(items)
        if self._is_open and (
            time.monotonic() >= self._next_s or (len(self._due) >= self._at_once and not self._fails)
        ):
            try:
                self.flush()
            finally:
                self._drop()
        elif self._weight > MOST_WAITING:
            self._drop()

    def flush(self) -> None:
        """Send all that waits."""
        began_s = time.monotonic()
        try:
            while self._due:
                part = [item for item, _ in itertools.islice(self._due, self._at_once)]
                self._send(part)
                for _ in part:
                    self._weight -= self._due.popleft()[1]
            self._fails = False
        except BaseException:
            self._fails = True
            raise
        finally:
            now_s = time.monotonic()
            self._next_s = now_s + max(self._interval_s, _REST * (now_s - began_s) if self._fails else 0)

    def kept(self) -> list[T]:
        """Send all that waits, unless that failed just now, and return what could not be sent, for a checkpoint."""
        if self._is_open and (not self._fails or time.monotonic() >= self._next_s):
            with suppress(Exception):  # the next `add` says so
                self.flush()
        return [item for item, _ in self._due]

    def close(self) -> None:
        """Send all that waits; a warning says how much of the whole could not be sent."""
        if self._is_open:
            with suppress(Exception):
                self.flush()
        if lost := self._dropped + len(self._due):
            why = "as nothing could be sent" if self._is_open else "as no fit began"
            entries = plural(lost, "entry is", "entries are")
            warn(f"logger destination {self._title}: {entries} lost, {why}", DestinationWarning)
        self._due.clear()
        self._weight = self._dropped = 0
        self._is_open = False

    def _drop(self) -> None:
        while self._weight > MOST_WAITING:
            if not self._dropped:
                waits = f"more than {MOST_WAITING:,} values wait to be sent, and the oldest are dropped"
                warn(f"logger destination {self._title}: {waits}", DestinationWarning)
            self._weight -= self._due.popleft()[1]
            self._dropped += 1
