"""What a study found, as rows: differences with places to draw them, and what results cost. Knows no HTML."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .charts import COLOURS, DASHES, MOST_LINES
from .study import Arm, Reached, Rung, StudyData, Target, Value
from .wording import NOTHING, Cell, cell

MARKS = {
    "gains": "gains",
    "loses": "loses",
    "no difference seen": "none",
    "no spread": "equal",
    "too few seeds": "few",
    "beyond the plot, to the left": "left",
    "beyond the plot, to the right": "right",
}
"""The mark of each verdict, and of a mean that is not in the plot."""
_BEYOND = 8
"""An arm that differs this many times as much as the middle one is beyond the plot: it would squeeze the others."""
_LEAST = 1e-300
"""The smallest range that can be divided."""
_ROOM = 0.08
"""Which share of the range is left free at either end."""


class Scale(NamedTuple):
    """The range of a plot; places in it are in percent."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Return where a value is, or that it is outside."""
        return round(min(110, max(-10, 100 * (value - self.low) / (self.high - self.low))), 2)

    def ticks(self) -> list[tuple[float, str]]:
        """Return round values with their places, away from the ends.

        Example:
            >>> Scale(-0.3, 0.5).ticks()
            [(12.5, '-0.2'), (37.5, '0'), (62.5, '+0.2'), (87.5, '+0.4')]
        """
        rough = (self.high - self.low) / 4
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough)
        values = [number * step for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [(at, signed(value)) for value in values if 6 <= (at := self.place(value)) <= 94]


def signed(value: float | None) -> str:
    """Return a difference with its sign, and three digits."""
    return NOTHING if value is None else f"{value:+.3g}" if value else "0"


class Row(NamedTuple):
    """An arm in a plot of differences.

    Args:
        words: what the study says of the difference.
        label: the same in numbers.
        mark: how the mean is drawn: by its verdict, or as `left` or `right` if it is beyond the plot.
        at: place of the mean; None: there is nothing to draw.
        ends: places of the ends of its interval.
        seeds: places of the differences of single seeds.
        cells: the difference, its interval, mean, deviation, seeds and p.
    """

    arm: Arm
    words: str
    label: str
    mark: str
    at: float | None
    ends: tuple[float, float] | None
    seeds: list[float]
    cells: list[Cell]


class Forest(NamedTuple):
    """A plot of the differences in a value.

    Args:
        zero: its place.
        better: which differences are, in words.
        legend: the marks that are in it, with their words.
    """

    name: str
    scale: Scale
    zero: float
    better: str
    legend: list[tuple[str, str]]
    rows: list[Row]


def forest_of(study: StudyData, name: str) -> Forest:
    """Return the differences of all arms in a value."""
    values = {arm.name: arm.values[name] for arm in study.arms}
    plain = values[study.baseline].by_seed
    seeds = {arm: _pairs(value.by_seed, plain) for arm, value in values.items() if value.difference}
    scale = _scale([[*_ends(values[arm]), *points] for arm, points in seeds.items()])
    rows = [_row(arm, name, scale, seeds.get(arm.name, []), study) for arm in study.arms]
    better = "← lower is better" if study.lower_is_better.get(name) else "higher is better →"
    marks = {row.mark for row in rows if row.at is not None}
    legend = [(mark, words) for words, mark in MARKS.items() if mark in marks]
    return Forest(name, scale, scale.place(0), better, legend, rows)


def _pairs(own: Mapping[str, float | None], plain: Mapping[str, float | None]) -> list[float]:
    both = [(value, plain.get(seed)) for seed, value in own.items()]
    return [value - other for value, other in both if value is not None and other is not None]


def _ends(value: Value) -> list[float]:
    found = value.difference
    return [] if found is None else [end for end in (found.low, found.mean, found.high) if end is not None]


def _scale(points: Sequence[Sequence[float]]) -> Scale:
    """Return a range that holds 0 and the points of each arm, but for arms that would squeeze the others."""
    reaches = [max(map(abs, each), default=0) for each in points]
    most = _BEYOND * statistics.median_low([reach for reach in reaches if reach] or [1])
    shown = [0.0, *(point for each, reach in zip(points, reaches, strict=True) if reach <= most for point in each)]
    low, high = min(shown), max(shown)
    low, high = (low, high) if high - low > _LEAST else (-1, 1)
    room = _ROOM * (high - low)
    return Scale(low - room, high + room)


def _row(arm: Arm, name: str, scale: Scale, seeds: Sequence[float], study: StudyData) -> Row:
    value = arm.values[name]
    found = value.difference
    mean, low, high = (found.mean, found.low, found.high) if found else (None, None, None)
    ends = None if low is None or high is None else (scale.place(low), scale.place(high))
    interval = NOTHING if ends is None else f"{signed(low)} to {signed(high)}"
    cells = [Cell(signed(mean)), Cell(interval), cell(value.mean), _short(value.sd), cell(value.n)]
    cells.append(_short(found.p_corrected if found else None))
    words, mark, at = "", "", None
    if found is not None:
        words, mark = found.words, MARKS.get(found.verdict, "few")
    if mean is not None:
        mark = "left" if mean < scale.low else "right" if mean > scale.high else mark
        at = min(96, max(4, scale.place(mean)))
    label = f"{arm.name} against {study.baseline}: {signed(mean)}, interval {interval}; {words}"
    return Row(arm, words, label, mark, at, ends, [scale.place(seed) for seed in seeds], cells)


def _short(value: float | None) -> Cell:
    return Cell(NOTHING) if value is None else Cell(f"{value:.2g}", repr(value))


class Cost(NamedTuple):
    """What a run of an arm costs, at the longest of the lengths.

    Args:
        setting: the one that was chosen, and of how many.
        cells: seconds, as a multiple of the baseline's, compute, its multiple, what it costs to reach each target,
            samples and tokens.
    """

    arm: Arm
    setting: str
    cells: list[Cell]


def costs_of(study: StudyData) -> list[Cost]:
    """Return what each arm costs."""
    passes = {arm.name: arm.ladder[-1].compute if arm.ladder else None for arm in study.arms}
    return [_cost(arm, passes[arm.name], passes[study.baseline], study) for arm in study.arms]


def _cost(arm: Arm, passes: float | None, plain: float | None, study: StudyData) -> Cost:
    ratio, times, share = arm.cost.ratio, "", ""
    if ratio is not None:
        spread = f" ({ratio.low:.2f} to {ratio.high:.2f})" if ratio.n > 1 else ""
        times = f"x {ratio.median:.2f}{spread}{'' if ratio.adjacent else ', not side by side'}"
    if passes is not None and plain and arm.name != study.baseline:
        share = f"x {passes / plain:.2f}"
    cells = [_count(arm.cost.seconds), Cell(times), _count(passes), Cell(share)]
    for name in study.target:
        reached = arm.to_target.get(name, Target())
        cells += [_reached(reached.compute), _reached(reached.seconds)]
    cells += [_count(arm.cost.samples), _count(arm.cost.tokens or None)]
    tried = f"{arm.setting or 'not known'} (of {arm.settings_tried})" if arm.settings_tried else arm.setting
    return Cost(arm, tried or "not tuned", cells)


def _reached(found: Reached | None) -> Cell:
    return Cell(NOTHING) if found is None else Cell(f"{found.bound} {_count(found.cost).text}".strip())


def _count(value: float | None) -> Cell:
    """Return a cost, rounded to the digits that matter."""
    if value is None:
        return Cell(NOTHING)
    return Cell(f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}", repr(value))


class Ladder(NamedTuple):
    """What a result costs: a chart with a line for each arm, and its numbers.

    Args:
        units: of its x axes: `x` is compute, `t` seconds.
        rows: arm, rung, and as cells mean, deviation, compute and seconds.
    """

    name: str
    units: dict[str, str]
    lines: list[dict[str, Any]]
    rows: list[tuple[str, Rung, list[Cell]]]
    words: str

    def to_json(self) -> dict[str, Any]:
        """Return what the script draws."""
        return {"title": self.name, "lines": self.lines, "resumed": {"x": [], "t": []}, "units": self.units}


def ladders_of(study: StudyData) -> list[Ladder]:
    """Return the ladder of each reported value that a run has; none if the runs don't tell what they cost."""
    rungs = [rung for arm in study.arms for rung in arm.ladder]
    costs = {"x": [rung.compute for rung in rungs], "t": [rung.seconds for rung in rungs]}
    names = {"x": study.units["compute"], "t": study.units["seconds"]}
    units = {axis: names[axis] for axis, found in costs.items() if all(cost and cost > 0 for cost in found)}
    ladders = [_ladder(name, study, units) for name in study.report] if units else []
    return [ladder for ladder in ladders if ladder.rows]


def _of_rung(rung: Rung, name: str) -> list[Cell]:
    return [cell(rung.values[name]), _short(rung.sd.get(name)), _count(rung.compute), _count(rung.seconds)]


def _ladder(name: str, study: StudyData, units: dict[str, str]) -> Ladder:
    lines, rows = list[dict[str, Any]](), list[tuple[str, Rung, list[Cell]]]()
    for number, arm in enumerate(study.arms):
        known = [(rung, y) for rung in arm.ladder if (y := rung.values.get(name)) is not None]
        rows += [(arm.name, rung, _of_rung(rung, name)) for rung, _ in known]
        look = {"colour": number % COLOURS, "dash": (number + number // COLOURS) % DASHES, "low": [], "high": []}
        x, t = [rung.compute for rung, _ in known], [rung.seconds for rung, _ in known]
        lines += [{"name": arm.name, "x": x, "t": t, "y": [y for _, y in known], **look}] if known else []
    told = [
        f"{arm} {value.text} for {(passes if 'x' in units else seconds).text}"
        for arm, _, (value, _, passes, seconds) in rows
    ]
    return Ladder(
        name, units, lines[:MOST_LINES], rows, f"{name} by {next(iter(units.values()), '')}: {', '.join(told)}"
    )
