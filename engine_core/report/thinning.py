"""Long series made short: what is drawn of a hundred thousand values. Knows no run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

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
