"""The validation loss of some methods over their compute, as an SVG image for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

from ladder import Rung

WIDTH, HEIGHT = 800, 420
HIGHEST = 1.2
"""The loss at the top, as a multiple of the lowest: short runs are far above the range where methods differ."""
LEFT, RIGHT, TOP, BOTTOM = 60, 560, 20, 370
STYLE = (
    "text{font:13px sans-serif;fill:#333}.axis{stroke:#8888;fill:none}.line{fill:none;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}}"
)
COLOURS = ("#777777", "#a07040", "#b08800", "#3f8fd0", "#2a9d6f", "#a05fc0", "#d9480f", "#c2407a")
DASHES = ("", "6 3", "2 3")

Scale = Callable[[float], float]


def draw(ladders: dict[str, list[Rung]], unit: str) -> str:
    """Return the image: compute on a logarithmic axis, a dot for each length."""
    rungs = [rung for ladder in ladders.values() for rung in ladder]
    x = _scale([math.log(rung.compute) for rung in rungs], LEFT, RIGHT)
    low = min(rung.loss for rung in rungs)
    y = _scale([low, min(HIGHEST * low, max(rung.loss for rung in rungs))], BOTTOM, TOP)
    target = next(iter(ladders.values()))[-1].loss
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>Validation loss over compute, in {escape(unit)}</title><style>{STYLE}</style>",
        f'<clipPath id="c"><rect x="{LEFT}" y="{TOP}" width="{RIGHT - LEFT + 4}" height="{BOTTOM - TOP}"/></clipPath>',
        f'<path class="axis" d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}"/>',
        f'<path class="axis" stroke-dasharray="2 4" d="M{LEFT} {y(target):.1f}H{RIGHT}"/>',
        *(_label(LEFT - 6, y(loss) + 4, f"{loss:g}", "end") for loss in _ticks([low, HIGHEST * low])),
        *(_label(x(math.log(c)), BOTTOM + 18, f"{c / 1000:,.0f}k", "middle") for c in _doublings(rungs)),
        _label((LEFT + RIGHT) / 2, BOTTOM + 40, f"compute, {unit}", "middle"),
        _label(LEFT - 6, TOP - 6, "validation loss", "start"),
    ]
    for place, (name, ladder) in enumerate(ladders.items()):
        parts += _line(place, name, [(x(math.log(rung.compute)), y(rung.loss)) for rung in ladder])
    return "\n".join([*parts, "</svg>", ""])


def _scale(values: list[float], first: float, last: float) -> Scale:
    low, high = min(values), max(values)
    margin = 0.05 * (high - low or 1)
    low, high = low - margin, high + margin
    return lambda value: first + (value - low) / (high - low) * (last - first)


def _ticks(losses: list[float]) -> list[float]:
    """Return about five round numbers between the least and the greatest."""
    least = (max(losses) - min(losses) or 1) / 6
    power = 10 ** math.floor(math.log10(least))
    step = next(power * part for part in (1, 2, 5, 10) if power * part >= least)
    first = math.ceil(min(losses) / step)
    return [round(i * step, 6) for i in range(first, math.floor(max(losses) / step) + 1)]


def _doublings(rungs: list[Rung]) -> list[float]:
    least = min(rung.compute for rung in rungs)
    return [least * 2**i for i in range(int(math.log2(max(rung.compute for rung in rungs) / least)) + 1)]


def _line(place: int, name: str, points: list[tuple[float, float]]) -> list[str]:
    colour, dash = COLOURS[place % len(COLOURS)], DASHES[place % 3 if place < 3 else 0]
    stroke = f'stroke="{colour}"' + (f' stroke-dasharray="{dash}"' if dash else "")
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    level = TOP + 24 * place + 10
    return [
        f'<path class="line" clip-path="url(#c)" {stroke} d="M{path}"/>',
        *(f'<circle clip-path="url(#c)" cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points),
        f'<path class="line" {stroke} d="M{RIGHT + 20} {level}h26"/>',
        _label(RIGHT + 52, level + 4, name, "start"),
    ]


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
