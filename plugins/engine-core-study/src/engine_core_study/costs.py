"""What an arm costs: its time beside the baseline's, and what a result costs on a ladder of lengths."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from .differences import is_finite


class Ratio(NamedTuple):
    """How many times the baseline's seconds an arm takes.

    Args:
        median: over the pairs.
        low: the smallest ratio of a pair.
        high: the largest.
        n: pairs.
    """

    median: float
    low: float
    high: float
    n: int


class Reached(NamedTuple):
    """What a target costs.

    Args:
        cost: in the unit of the ladder's costs.
        bound: `<` if the shortest run already reaches the target, so it costs at most that; `>` if no run reaches it,
            so it costs more than the longest; otherwise empty.
    """

    cost: float
    bound: Literal["", "<", ">"]


def cost_ratio(pairs: Iterable[tuple[float | None, float | None]]) -> Ratio | None:
    """Return the ratio of seconds in pairs (arm, baseline) of runs that ran next to each other, None without a pair.

    A machine that others use is slow for a while, for both runs of a pair: their ratio is steadier than the seconds.
    The middle of two ratios is their geometric mean, so to exchange arm and baseline inverts the ratio.

    Example:
        >>> cost_ratio([(3.0, 2.0), (8.0, 4.0), (1.0, 1.0)])
        Ratio(median=1.5, low=1.0, high=2.0, n=3)
    """
    ratios = sorted(arm / other for arm, other in pairs if is_finite(arm) and is_finite(other) and min(arm, other) > 0)
    if not ratios:
        return None
    median = math.sqrt(statistics.median_low(ratios) * statistics.median_high(ratios))
    return Ratio(median, ratios[0], ratios[-1], len(ratios))


def reach(rungs: Sequence[tuple[float, float | None]], target: float, *, higher_is_better: bool) -> Reached | None:
    """Return the cost at which a ladder first reaches a target, None if no rung has a value.

    Between two rungs the value is taken as linear in the logarithm of the cost. A rung without a finite value is
    skipped: a run that failed says nothing about its length.

    Args:
        rungs: cost and value of each length, in any order.
        target: the value to reach.
        higher_is_better: of the value.

    Raises:
        ValueError: a cost is not positive, so it has no logarithm.

    Example:
        >>> reach([(1, 0.5), (4, 0.7)], 0.6, higher_is_better=True)
        Reached(cost=2.0, bound='')
    """
    if faulty := [cost for cost, _ in rungs if not cost > 0]:
        raise ValueError(f"a rung costs {faulty[0]}: costs are positive")
    sign = 1 if higher_is_better else -1
    ladder = sorted((cost, sign * value) for cost, value in rungs if is_finite(value))
    if not ladder:
        return None
    goal = sign * target
    if ladder[0][1] >= goal:
        return Reached(ladder[0][0], "<")
    for i in range(1, len(ladder)):
        (cost, value), (next_cost, next_value) = ladder[i - 1], ladder[i]
        if next_value >= goal:
            return Reached(cost * (next_cost / cost) ** ((goal - value) / (next_value - value)), "")
    return Reached(ladder[-1][0], ">")
