"""The picture of what recipes gain: `python docs/recipe_curves.py` draws images/recipes.svg from the studies' tables.

For each recipe a panel: what training costs against what it reaches, without and with the recipe, with bands of one
standard deviation over the seeds; and how much less the recipe costs to reach what the longest plain training reaches.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from engine_core_study.costs import reach

DOCS = Path(__file__).parent
FILE, TABLES = DOCS / "images" / "recipes.svg", DOCS.parent / "benchmarks" / "recipes"

WIDTH, HEIGHT, PANEL = 820, 350, 410
LEFT, RIGHT, TOP, BOTTOM = 62, 24, 76, 52  # of a panel, around its curves
PLAIN, RECIPE, GREY, DARK = "#666666", "#0b63b0", "#666666", "#222222"


class Panel(NamedTuple):
    """A study to draw.

    Args:
        table: its `study.csv`; the first arm is the baseline, the second the recipe.
        value: a column: what training reaches.
        cost: a column, which `unit` describes.
    """

    table: str
    title: str
    value: str
    cost: str
    unit: str
    higher_is_better: bool


PANELS = [
    Panel("images.csv", "fast-images on Fashion-MNIST", "test/accuracy", "samples", "images passed", True),
    Panel("text.csv", "fast-text on bytes of source code", "test/loss", "tokens", "tokens", False),
]
FINETUNING = "fast-finetune for new classes of Fashion-MNIST"
TOLD = [*PANELS, Panel("finetune.csv", FINETUNING, "test/accuracy", "samples", "images passed", True)]
"""What the README's table has: the panels that are drawn, and more."""


class Point(NamedTuple):
    """What an arm reaches at one length: cost, mean and deviation over the seeds."""

    cost: float
    value: float
    sd: float


def runs_of(panel: Panel) -> dict[str, dict[str, list[dict[str, str]]]]:
    """Return the reported runs of each arm, by length, in the order of their seeds."""
    with (TABLES / panel.table).open(encoding="utf-8", newline="") as file:
        runs = [run for run in csv.DictReader(file) if run["folder"].startswith("runs/")]
    found: dict[str, dict[str, list[dict[str, str]]]] = {}
    for run in sorted(runs, key=lambda run: (int(run["seed"]), float(run[panel.cost]))):
        found.setdefault(run["arm"], {}).setdefault(run["length"], []).append(run)
    return {arm: found[arm] for arm in dict.fromkeys(run["arm"] for run in runs)}


def curves_of(panel: Panel) -> dict[str, list[Point]]:
    """Return the points of each arm, the cheapest first."""
    points = {
        arm: [
            Point(mean(float(run[panel.cost]) for run in of), mean(values), stdev(values))
            for of in lengths.values()
            for values in [[float(run[panel.value]) for run in of]]
        ]
        for arm, lengths in runs_of(panel).items()
    }
    return {arm: sorted(each) for arm, each in points.items()}


class Gain(NamedTuple):
    """The cost of the longest plain training, divided by what the recipe needs for its result.

    Args:
        times: from the means over the seeds.
        low, high: the least and the largest of single seeds.
        is_least: had the recipe's shortest training reached more already?
    """

    times: float
    low: float
    high: float
    is_least: bool

    @property
    def words(self) -> str:
        """The gain in words."""
        return f"{'over ' * self.is_least}{self.times:.1f}x fewer"


def gain_of(panel: Panel, cost: str | None = None) -> Gain:
    """Return how much less the recipe costs, in the panel's unit or in another column."""
    plain, recipe = list(runs_of(panel._replace(cost=cost or panel.cost)).values())[:2]
    seeds = [_gain(panel, cost, [of[i : i + 1] for of in plain.values()], [of[i : i + 1] for of in recipe.values()])
             for i in range(len(next(iter(plain.values()))))]  # fmt: skip
    times, is_least = _gain(panel, cost, list(plain.values()), list(recipe.values()))
    return Gain(times, min(seeds)[0], max(seeds)[0], is_least)


def _gain(
    panel: Panel, cost: str | None, plain: Sequence[list[dict[str, str]]], recipe: Sequence[list[dict[str, str]]]
) -> tuple[float, bool]:
    ladders = [
        sorted((mean(float(run[cost or panel.cost]) for run in of), mean(float(run[panel.value]) for run in of))
               for of in arm)
        for arm in (plain, recipe)
    ]  # fmt: skip
    spent, reached = ladders[0][-1]
    found = reach(ladders[1], reached, higher_is_better=panel.higher_is_better)
    if found is None or found.bound == ">":
        raise ValueError(f"{panel.table}: no length of the recipe reaches {reached}")
    return spent / found.cost, found.bound == "<"


def as_svg() -> str:
    """Return the picture."""
    drawn = [line for place, panel in enumerate(PANELS) for line in _panel(panel, place * PANEL)]
    told = "; ".join(f"{panel.title}: {gain_of(panel).words}" for panel in PANELS)
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    font = 'font-family="system-ui, sans-serif" font-size="12"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title description" {font}>',
        '  <title id="title">What training costs against what it reaches, plain and with a recipe</title>',
        f'  <desc id="description">Compute to reach what the longest plain training reaches. {told}.</desc>',
        f'  <rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
    ]
    return "\n".join([*head, *drawn, "</svg>", ""])


def _panel(panel: Panel, left: int) -> Iterator[str]:
    curves = curves_of(panel)
    points = [point for curve in curves.values() for point in curve]
    x = _scale([math.log(point.cost) for point in points], left + LEFT, left + PANEL - RIGHT)
    ends = [end for _, value, sd in points for end in (value - sd, value + sd)]
    y = _scale(ends, HEIGHT - BOTTOM, TOP)
    yield f'  <text x="{left + 24}" y="32" font-size="15" font-weight="600" fill="{DARK}">{panel.title}</text>'
    for tick in _ticks(min(ends), max(ends)):
        at = f"{y(tick):.1f}"
        yield f'  <path d="M{left + LEFT} {at}H{left + PANEL - RIGHT}" stroke="#e3e3e3"/>'
        yield f'  <text x="{left + LEFT - 8}" y="{at}" dy="4" text-anchor="end" fill="{GREY}">{tick:g}</text>'
    for cost in sorted({point.cost for point in next(iter(curves.values()))}):
        middle = f'x="{x(math.log(cost)):.1f}" text-anchor="middle" fill="{GREY}"'
        yield f'  <text {middle} y="{HEIGHT - BOTTOM + 20}">{_count(cost)}</text>'
    words = f"{panel.value}, against {panel.unit}; bands: one standard deviation"
    yield f'  <text x="{left + 24}" y="52" fill="{GREY}">{words}</text>'
    for (arm, curve), colour in zip(curves.items(), (PLAIN, RECIPE), strict=False):
        yield from _curve(arm, curve, colour, lambda cost: x(math.log(cost)), y)
    yield from _comparison(panel, curves, lambda cost: x(math.log(cost)), y)


def _curve(
    arm: str, curve: Sequence[Point], colour: str, x: Callable[[float], float], y: Callable[[float], float]
) -> Iterator[str]:
    upper = [f"{x(cost):.1f},{y(value + sd):.1f}" for cost, value, sd in curve]
    lower = [f"{x(cost):.1f},{y(value - sd):.1f}" for cost, value, sd in reversed(curve)]
    middle = " ".join(f"{x(cost):.1f},{y(value):.1f}" for cost, value, _ in curve)
    yield f'  <polygon points="{" ".join([*upper, *lower])}" fill="{colour}" opacity="0.18"/>'
    yield f'  <polyline points="{middle}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
    for cost, value, _ in curve:
        yield f'  <circle cx="{x(cost):.1f}" cy="{y(value):.1f}" r="3.5" fill="{colour}"/>'
    cost, value, _ = curve[0]
    yield f'  <text x="{x(cost) + 8:.1f}" y="{y(value):.1f}" dy="4" font-weight="600" fill="{colour}">{arm}</text>'


def _comparison(
    panel: Panel, curves: dict[str, list[Point]], x: Callable[[float], float], y: Callable[[float], float]
) -> Iterator[str]:
    end, gain = next(iter(curves.values()))[-1], gain_of(panel)
    begin, last, at = x(end.cost / gain.times), x(end.cost), y(end.value)
    yield f'  <path d="M{begin:.1f} {at:.1f}H{last:.1f}" stroke="{DARK}" stroke-dasharray="4 3" fill="none"/>'
    middle = f'x="{(begin + last) / 2:.1f}" y="{at:.1f}" dy="16" text-anchor="middle"'
    yield f'  <text {middle} font-weight="600" fill="{DARK}">{gain.words}</text>'


def _scale(values: Sequence[float], first: float, last: float) -> Callable[[float], float]:
    """Return the map of a range, with some room, onto pixels."""
    low, high = min(values), max(values)
    room = 0.06 * (high - low)
    return lambda value: first + (value - low + room) / (high - low + 2 * room) * (last - first)


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers within a range."""
    step = next(step for power in range(-4, 3) for step in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)
                if (high - low) / step <= 6)  # fmt: skip
    return [round(n * step, 10) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _count(cost: float) -> str:
    return f"{cost / 1e6:.2g} M" if cost >= 1e6 else f"{cost / 1e3:.0f} k"


if __name__ == "__main__":
    FILE.write_text(as_svg(), encoding="utf-8")
