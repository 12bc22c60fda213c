"""The ratio of two kinds of step that took turns, and how well it is known."""

from __future__ import annotations

import math
import statistics

__all__ = ["ratio_of"]


def ratio_of(seconds: list[float], others: list[float]) -> tuple[float, float]:
    """Return the median ratio of two kinds of step, and its standard error as that of a normal sample."""
    ratios = [one / other for one, other in zip(seconds, others, strict=True)]
    middle = statistics.median(ratios)
    spread = 1.4826 * statistics.median(abs(ratio - middle) for ratio in ratios)
    return middle, 1.2533 * spread / math.sqrt(len(ratios))
