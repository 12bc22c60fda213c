"""Ladders: the loss of a method at several lengths, and what it costs to reach a loss. Knows no training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

Record = dict[str, Any]


class Rung(NamedTuple):
    """Runs of one length: their means over the seeds."""

    epochs: float
    compute: float
    cpu_s: float
    loss: float
    accuracy: float


class Reached(NamedTuple):
    """What a loss costs; `is_bound`: no more than that, for the shortest run has it already."""

    cost: float
    is_bound: bool


def ladder_of(records: Iterable[Record]) -> list[Rung]:
    """Return the rungs of one method, shortest first."""
    by_length: dict[float, list[Record]] = {}
    for record in records:
        by_length.setdefault(record["epochs"], []).append(record)
    fields = Rung._fields[1:]
    return [
        Rung(epochs, *(statistics.mean(record[field] for record in group) for field in fields))
        for epochs, group in sorted(by_length.items())
    ]


def reach(costs: Sequence[float], losses: Sequence[float], target: float) -> Reached | None:
    """Return the cost at which a ladder first comes down to `target`, None if it never does.

    Between two rungs the loss is taken to be linear in the logarithm of the cost.

    Example:
        >>> reach([1, 4], [0.5, 0.3], 0.4)
        Reached(cost=2.0, is_bound=False)
    """
    if losses and losses[0] <= target:
        return Reached(costs[0], is_bound=True)
    for i in range(1, len(losses)):
        if losses[i] <= target:
            part = (losses[i - 1] - target) / (losses[i - 1] - losses[i])
            low, high = math.log(costs[i - 1]), math.log(costs[i])
            return Reached(math.exp(low + part * (high - low)), is_bound=False)
    return None


def ratio(ladder: list[Rung], baseline: list[Rung], field: str) -> Reached | None:
    """Return what the loss of the baseline's longest run costs, as a share of what that run cost.

    Args:
        field: `compute` or `cpu_s`.
    """
    last = baseline[-1]
    reached = reach([getattr(rung, field) for rung in ladder], [rung.loss for rung in ladder], last.loss)
    return None if reached is None else reached._replace(cost=reached.cost / getattr(last, field))


def spread(of: list[Record], baseline: list[Record], field: str) -> tuple[float, float] | None:
    """Return the least and the greatest ratio when each seed in turn is left out; None: not reached, or too few."""
    seeds = sorted({record["seed"] for record in of})
    if len(seeds) < 3:
        return None
    found = []
    for left_out in seeds:
        ladder, other = (ladder_of(record for record in runs if record["seed"] != left_out) for runs in (of, baseline))
        if not (ladder and other) or (reached := ratio(ladder, other, field)) is None:
            return None
        found.append(reached.cost)
    return min(found), max(found)
