"""Ladders: the loss of a method at several lengths, and what it costs to reach a loss."""

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
    loss: float
    accuracy: float


class Reached(NamedTuple):
    """What a loss costs; `is_bound`: at most that, as the shortest run has already reached it."""

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
    """Return the cost at which a ladder first reaches `target`, None if it never does.

    Between two rungs the loss is assumed to be linear in the logarithm of the cost.

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


def ratio(ladder: list[Rung], baseline: list[Rung]) -> Reached | None:
    """Return the compute to the loss of the baseline's longest run, as a share of what that run took."""
    last = baseline[-1]
    reached = reach([rung.compute for rung in ladder], [rung.loss for rung in ladder], last.loss)
    return None if reached is None else reached._replace(cost=reached.cost / last.compute)


def ratios_by_seed(of: Iterable[Record], baseline: Iterable[Record]) -> list[float]:
    """Return `ratio` for each seed that reaches the baseline's loss with that seed."""
    of, baseline = list(of), list(baseline)
    found = []
    for seed in sorted({record["seed"] for record in of}):
        ladder, other = (ladder_of(record for record in runs if record["seed"] == seed) for runs in (of, baseline))
        if (reached := ratio(ladder, other)) is not None:
            found.append(reached.cost)
    return found


def price(records: Iterable[Record]) -> float | None:
    """Return the CPU seconds for a unit of compute: the median of the runs, as single ones vary by a sixth.

    None if runs have no time, because they were made on another machine than those they are compared with.
    """
    records = list(records)
    if any("cpu_s" not in record for record in records):
        return None
    return statistics.median(record["cpu_s"] / record["compute"] for record in records)


def complete(records: Iterable[Record]) -> list[Record]:
    """Return the runs of one method, only for seeds that were run at all its lengths."""
    records = list(records)
    lengths = {record["epochs"] for record in records}
    of_seed: dict[int, set[float]] = {}
    for record in records:
        of_seed.setdefault(record["seed"], set()).add(record["epochs"])
    return [record for record in records if of_seed[record["seed"]] == lengths]
