"""The logged values of a run as series, thinned to be drawn, the best of them, and when algorithms ran."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

from engine_core.logger import VALUES, is_event
from engine_core.manifest import Manifest
from engine_core.results import Results

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


MOST = 1000
"""How many points of a series are kept."""


class Thin(NamedTuple):
    """A series to draw.

    Args:
        x, t: step and seconds of each point.
        y: its mean, None for a gap.
        low, high: the lowest and highest of the values that were merged into it; empty where nothing was merged.
        not_finite: how many values of the whole series were not finite.
        merged: how many values a point stands for.
    """

    x: list[float]
    t: list[float]
    y: list[float | None]
    low: list[float | None]
    high: list[float | None]
    not_finite: int
    merged: int


def thin(x: Sequence[float], t: Sequence[float], y: Sequence[float | None], most: int = MOST) -> Thin:
    """Return at most `most` points of a series; each stretch of values is placed at its last step.

    Example:
        >>> thin([1, 2, 3, 4], [0, 0, 0, 0], [4.0, 2.0, None, 1.0], most=2)[:5]
        ([2, 4], [0, 0], [3.0, 1.0], [2.0, 1.0], [4.0, 1.0])
    """
    missing = sum(value is None for value in y)
    if len(x) <= most:
        return Thin(list(x), list(t), [_short(value) for value in y], [], [], missing, 1)
    width = -(-len(x) // most)
    thinned = Thin([], [], [], [], [], missing, width)
    for start in range(0, len(x), width):
        stretch = y[start : start + width]
        good = [value for value in stretch if value is not None]
        last = start + len(stretch) - 1
        thinned.x.append(x[last])
        thinned.t.append(t[last])
        thinned.y.append(_short(_mean(good)))
        thinned.low.append(_short(min(good, default=None)))
        thinned.high.append(_short(max(good, default=None)))
    return thinned


def _mean(values: Sequence[float]) -> float | None:
    if not values:
        return None
    # Divided first where the sum of large values would overflow.
    return math.fsum(value / len(values) for value in values)


def _short(value: float | None) -> float | None:
    """Return a value with as many digits as a picture can show."""
    return value if value is None or isinstance(value, int) else float(f"{value:.6g}")


def evaluated_in(manifest: Manifest) -> set[str]:
    """Return the first words of the results of evaluations."""
    evaluated = manifest.config.get("eval_data")
    named = {label for label in evaluated if isinstance(label, str)} if isinstance(evaluated, dict) else set()
    return named or {"eval"}


def best_of(
    results: Mapping[str, Any], diary: list[dict[str, Any]], logged: Logged, manifest: Manifest
) -> dict[str, Mapping[str, Any]]:
    """Return the best values as the run noted them, or else by the same rule from what was logged."""
    noted = results.get("best")
    if not isinstance(noted, dict):
        evaluated = [line["best"] for line in diary if isinstance(line.get("best"), dict)]
        noted = evaluated[-1] if evaluated else _best_logged(logged, manifest)
    return {
        name: {key: number_in(best.get(key)) for key in ("value", "step", "epoch")}
        for name, best in noted.items()
        if _is_best(best)
    }


def _is_best(best: Any) -> bool:
    return isinstance(best, dict) and number_in(best.get("value")) is not None


def _best_logged(logged: Logged, manifest: Manifest) -> dict[str, Any]:
    labels, rule = evaluated_in(manifest), rule_of(manifest)
    found = {name: best_in(name, logged, rule) for name in logged.series if name.partition("/")[0] in labels}
    return {name: best for name, best in found.items() if best is not None}


def rule_of(manifest: Manifest) -> Results:
    """Return what a run takes for better, as metrics and config say; a name of which that says both is left out."""
    lower, higher = directions_of(manifest)
    results = Results(higher_is_better=manifest.higher_is_better or {})
    results.set_directions(lower - higher, higher - lower)
    return results


def directions_of(manifest: Manifest) -> tuple[set[str], set[str]]:
    """Return the names of which a run's config says that lower is better, and those of which it says higher."""
    told = manifest.config.get("results")
    lower, higher = (_names(told.get(key) if isinstance(told, dict) else None) for key in ("lower", "higher"))
    return {*lower}, {*higher}


def best_in(name: str, logged: Logged, rule: Results) -> dict[str, Any] | None:
    """Return the best value of those that were logged, in the form of `results.json`; None if none was finite."""
    series, results = logged.series.get(name, Series()), replace(rule, last={}, best={}, improved=set())
    for step, value in zip(series.x, series.y, strict=True):
        if value is not None:
            results.record({name: value}, int(step), 0)
    best = results.best.get(name)
    return None if best is None else {"value": best.value, "step": best.step, "epoch": None}


def _names(value: Any) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
