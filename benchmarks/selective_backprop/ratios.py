"""The ratio of two kinds of step that took turns, and how well it is known."""

from __future__ import annotations

import math
import statistics

__all__ = ["ratio_of"]


def ratio_of(seconds: list[list[float]], others: list[list[float]]) -> tuple[float, float]:
    """Return the ratio of two kinds of step, and its standard error; what they took in each round of each process.

    That of a process is the median over its rounds; the ratio is the mean over the processes, which differ by more than
    their rounds tell: each has its memory laid out in another way.
    """
    medians = [
        statistics.median(one / other for one, other in zip(*rounds, strict=True))
        for rounds in zip(seconds, others, strict=True)
    ]
    return statistics.mean(medians), statistics.stdev(medians) / math.sqrt(len(medians))
