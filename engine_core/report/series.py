"""The logged values of a run as series over step and seconds, and when each algorithm ran. Knows no folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ..logger import VALUES, is_event
from .files import LARGEST, number_in

SPEED = "speed/batches per second"
LOSS = "train/loss"
_POINTS_OF_SPEED = 200


@dataclass
class Series:
    """What was logged under a name; y is None where it was not finite."""

    x: list[float] = field(default_factory=list)
    t: list[float] = field(default_factory=list)
    y: list[float | None] = field(default_factory=list)

    def add(self, step: float, seconds: float, value: float | None) -> None:
        """Append a value; what was logged at this step or later belongs to an attempt that this one replaces."""
        while self.x and self.x[-1] >= step:
            for values in (self.x, self.t, self.y):
                values.pop()
        self.x.append(step)
        self.t.append(seconds)
        self.y.append(value)


class Logged:
    """All that was logged, with seconds that never go back.

    Attributes:
        series: of numbers, by name.
        last: the latest value of each name, whatever it is.
        resumed: step and seconds where an attempt began whose clock started anew.
        steps: how many batches are complete; a loss is logged before its batch is.
    """

    def __init__(self) -> None:
        self.series: dict[str, Series] = {}
        self.last: dict[str, Any] = {}
        self.resumed: list[tuple[float, float]] = []
        self.steps = 0.0
        self._before_s = self._offset_s = 0.0

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a line of `metrics.jsonl`, unless it is an event."""
        if is_event(line):
            return
        step, seconds = line["step"], line["seconds"]
        if seconds + self._offset_s < self._before_s - 1e-3:  # less is a rounding
            self._offset_s = self._before_s - seconds
            self.resumed.append((step, self._before_s))
        self._before_s = max(self._before_s, seconds + self._offset_s)
        self.steps = step + (LOSS in line)
        for name, value in line.items():
            if name in ("step", "seconds") or (name == "kind" and value == VALUES):
                continue
            self.last[name] = value
            if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
                self.series.setdefault(name, Series()).add(step, self._before_s, number_in(value))


def speed_of(loss: Series) -> Series:
    """Return the batches per second, evaluation included, from the steps and seconds at which the loss was logged."""
    apart = max(1, len(loss.x) // _POINTS_OF_SPEED)
    speed = Series()
    for (x, t), (later_x, later_t) in pairwise(zip(loss.x[::apart], loss.t[::apart], strict=True)):
        if later_t > t:
            speed.add(later_x, later_t, (later_x - x) / (later_t - t))
    return speed


@dataclass(frozen=True)
class Stretch:
    """How often an algorithm ran at an event between two steps."""

    start: float
    end: float
    count: float


def runs_of(diary: Iterable[dict[str, Any]]) -> dict[str, list[Stretch]]:
    """Return the stretches of each `Algorithm/EVENT`; those after the step at which a run is resumed are dropped."""
    found: dict[str, list[Stretch]] = {}
    begin = 0.0
    for line in diary:
        step, runs = line["step"], line.get("runs")
        if line.get("kind") in ("start", "resume"):
            found = {name: list(_until(stretches, step)) for name, stretches in found.items()}
            begin = step
        elif line.get("kind") in ("epoch", "progress") and isinstance(runs, dict):
            for name, count in runs.items():
                number = number_in(count)
                if number is not None and 0 < number <= LARGEST:
                    found.setdefault(name, []).append(Stretch(begin, step, number))
            begin = step
    return {name: stretches for name, stretches in found.items() if stretches}


def _until(stretches: Iterable[Stretch], step: float) -> Iterable[Stretch]:
    for stretch in stretches:
        if stretch.end <= step:
            yield stretch
        elif stretch.start < step:
            share = (step - stretch.start) / (stretch.end - stretch.start)
            yield Stretch(stretch.start, step, stretch.count * share)


def strip_of(stretches: Iterable[Stretch], steps: float, cells: int) -> list[float]:
    """Return for each of equal parts of a run in which share of its steps an algorithm ran, from 0 to 1.

    Example:
        >>> strip_of([Stretch(0, 5, 5), Stretch(5, 10, 0), Stretch(10, 20, 5)], steps=20, cells=4)
        [1.0, 0.0, 0.5, 0.5]
    """
    shares = [0.0] * cells
    width = steps / cells
    for stretch in stretches:
        length = stretch.end - stretch.start
        if length <= 0 or width <= 0:
            continue
        rate = min(1.0, stretch.count / length)
        for cell in range(int(max(0, stretch.start) / width), cells):
            overlap = min(stretch.end, (cell + 1) * width) - max(stretch.start, cell * width)
            if overlap <= 0:
                break
            shares[cell] += rate * overlap / width
    return [min(1.0, round(share, 4)) for share in shares]
