"""The ratio of two kinds of step that took turns, and its standard error."""

from __future__ import annotations

import math
import statistics

__all__ = ["ratio_of"]


def ratio_of(seconds: list[list[float]], others: list[list[float]]) -> tuple[float, float]:
    """Return the ratio of two kinds of step, and its standard error, from their times in each round of each process.

    A process's ratio is the median over its rounds; the result is the mean over the processes, which differ by more
    than their rounds show: each has its own memory layout.
    """
    medians = [
        statistics.median(one / other for one, other in zip(*rounds, strict=True))
        for rounds in zip(seconds, others, strict=True)
    ]
    return statistics.mean(medians), statistics.stdev(medians) / math.sqrt(len(medians))
