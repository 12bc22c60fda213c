"""Which values share a chart, and what is drawn in it. Knows no HTML."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .reading import RunData
from .series import SPEED, Thin

COLOURS = 6
DASHES = 6
MOST_LINES = 24
"""How many lines a chart has; its table has the others too."""
NOTES = {SPEED: "Made from the steps and seconds of train/loss; evaluation is included."}
_AFTER_TRAINING = 3
"""How many dashes lie between two values of a run in one chart."""


class Drawn(NamedTuple):
    """A value of a run, in its chart."""

    number: int
    run: str
    name: str
    series: Thin


class Row(NamedTuple):
    """The numbers of a line, for its table."""

    label: str
    colour: int
    dash: int
    first: float | None
    lowest: float | None
    highest: float | None
    last: float | None
    points: str


@dataclass(frozen=True)
class Chart:
    """A chart: its lines for the script, and its numbers for people.

    Args:
        id: its place among all charts of the page.
        panel: the first word of its values; empty for those of training and evaluation.
        left_out: how many lines are not drawn.
    """

    id: int
    panel: str
    title: str
    rows: list[Row]
    lines: list[dict[str, Any]]
    resumed: Mapping[str, list[float]]
    left_out: int = 0
    note: str = ""
    names: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Its name, which no other chart has, however names look once they are escaped."""
        return json.dumps([self.panel, self.title])

    def to_json(self) -> dict[str, Any]:
        """Return what the script draws."""
        return {"title": self.title, "lines": self.lines, "resumed": self.resumed}


def charts_of(runs: Sequence[tuple[str, RunData]]) -> list[Chart]:
    """Return the charts of runs, each given with its name, in the order of the page.

    What never changes, or came once, has none.
    """
    grouped: dict[tuple[str, str], list[Drawn]] = {}
    for number, (run_name, run) in enumerate(runs):
        labels = run.labels
        for name, series in run.series.items():
            if _changes(series):
                drawn = Drawn(number, run_name, name, series)
                grouped.setdefault(place_of(name, labels), []).append(drawn)
    places = sorted(grouped, key=lambda place: (place[0] != "", place[0] != "speed", place[0], place[1] != "loss"))
    return [_chart(index, place, grouped[place], runs) for index, place in enumerate(places)]


def place_of(name: str, labels: set[str]) -> tuple[str, str]:
    """Return panel and title of the chart of a logged value.

    Example:
        >>> place_of("eval/loss", {"train", "eval"}), place_of("train/lr/0", {"train"}), place_of("own/norm", {"train"})
        (('', 'loss'), ('', 'lr'), ('own', 'norm'))
    """
    first, _, rest = name.partition("/")
    if not rest:
        return "", name
    stem, _, number = rest.rpartition("/")
    title = stem if stem and number.isdigit() else rest
    return ("", title) if first in labels else (first, title)


def _changes(series: Thin) -> bool:
    values = {value for values in (series.y, series.low, series.high) for value in values if value is not None}
    return len(series.x) > 1 and len(values) > 1


def _chart(index: int, place: tuple[str, str], drawn: list[Drawn], runs: Sequence[tuple[str, RunData]]) -> Chart:
    names = list(dict.fromkeys(one.name for one in drawn))
    rows: list[Row] = []
    lines: list[dict[str, Any]] = []
    for one in drawn:
        label = one.name
        if len(runs) > 1:
            label = one.run if len(names) == 1 else f"{one.run} {one.name}"
        colour, dash = _look(one.number, names.index(one.name), of_runs=len(runs) > 1)
        rows.append(_row(label, colour, dash, one.series))
        if len(lines) < MOST_LINES:
            lines.append({"name": label, "colour": colour, "dash": dash, **_points(one.series)})
    resumed = sorted({at for number in {one.number for one in drawn} for at in runs[number][1].resumed})
    marks = {"x": [step for step, _ in resumed], "t": [round(seconds, 3) for _, seconds in resumed]}
    panel, title = place
    note = NOTES.get(names[0], "")
    return Chart(index, panel, title, rows, lines, marks, len(rows) - len(lines), note, names)


def _look(run: int, value: int, *, of_runs: bool) -> tuple[int, int]:
    """Return colour and dash: the colour is the run's if there are several, else the value's."""
    first, second = (run, value) if of_runs else (value, 0)
    return first % COLOURS, (first + first // COLOURS + _AFTER_TRAINING * second) % DASHES


def _points(series: Thin) -> dict[str, list[float | None]]:
    lengths = {name: list(getattr(series, name)) for name in ("x", "y", "low", "high")}
    return {**lengths, "t": _rounded(series.t)}


def _rounded(seconds: Sequence[float]) -> list[float | None]:
    """Return seconds with the digits that tell points of a chart apart."""
    span = max(seconds) - min(seconds)
    digits = 6 - math.ceil(math.log10(span)) if span > 0 else 3
    return [round(second, max(0, digits)) for second in seconds]


def _row(label: str, colour: int, dash: int, series: Thin) -> Row:
    low = [value for value in series.low or series.y if value is not None]
    high = [value for value in series.high or series.y if value is not None]
    points = f"{len(series.x):,}" + (f", each of {series.merged:,} values" if series.merged > 1 else "")
    good = [value for value in series.y if value is not None]
    return Row(label, colour, dash, good[0], min(low), max(high), good[-1], points)
