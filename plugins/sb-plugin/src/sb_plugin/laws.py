"""The weight of each rank of a batch, and its probability of being kept. Uses no scores and draws nothing."""

from __future__ import annotations

import math
from functools import lru_cache

import torch

__all__ = ["ONE", "inclusion", "log_weights", "ticks"]

ONE = 2**36
"""Probability 1 in whole ticks: with thousands of rows probabilities are exact to 1e-8, and sums fit in 64 bits."""

# Above it only the hardest are kept anyway; below it all logarithms are finite, in single precision too.
_STEEPEST = 1e30


@lru_cache(maxsize=32)
def log_weights(n: int, keep: float, device: torch.device) -> torch.Tensor:
    """Return the logarithm of the weight of each rank (n,), the easiest row's first.

    The weight is `((r + 0.5) / n) ** (1 / keep - 1)`: the percentile of the rank to the power that the paper calls
    beta (arXiv 1910.00762), as Composer writes it.
    """
    return _log_weights(n, keep).float().to(device)


def inclusion(m: int, k: int, keep: float, floor: float, law: str) -> torch.Tensor:
    """Return the probability that each of `m` ranks (m,) is among the `k` kept ones, the easiest row's first.

    Args:
        floor: the share of the uniform distribution; no rank has less than `floor * k / m`.
        law: `"cdf"` caps multiples of the weights at 1, `"topk"` takes the `k` hardest ranks.

    Example:
        >>> inclusion(4, 2, 0.5, 0.0, "cdf")  # the weights are as 1, 3, 5, 7
        tensor([0.1250, 0.3750, 0.6250, 0.8750], dtype=torch.float64)
    """
    if law == "topk":
        hardest = torch.arange(m) >= m - k
        return (1 - floor) * hardest.double() + floor * k / m
    logs = _log_weights(m, keep)
    if floor:
        logs = torch.logaddexp(logs.log_softmax(0) + math.log1p(-floor), logs.new_tensor(math.log(floor) - math.log(m)))
    return _capped(logs, k)


def _log_weights(m: int, keep: float) -> torch.Tensor:
    percentiles = (torch.arange(m, dtype=torch.float64) + 0.5) / m
    return min(1 / keep - 1, _STEEPEST) * percentiles.log()


def _capped(logs: torch.Tensor, k: int) -> torch.Tensor:
    """Return `min(1, c * w)` with the `c` that makes it sum to `k`, for ascending weights given as logarithms."""
    totals = logs.logcumsumexp(0)
    # With the j hardest ranks at 1, the others share k - j; the next one is capped too if its share is above 1.
    left = torch.arange(k, 0, -1, dtype=logs.dtype).log()
    above = left + (logs - totals)[-k:].flip(0) > 0
    j = min(int(above.cumprod(0).sum()), k - 1)
    return (left[j] + logs - totals[-1 - j]).exp().clamp_max(1)


@lru_cache(maxsize=64)
def ticks(
    m: int, k: int, keep: float, floor: float, law: str, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sums of `inclusion` up to each rank (m,), and the `k` first ticks of a systematic sample (k,).

    In whole ticks: the last sum is exactly `k * ONE`, and no sum is more than `ONE` above the one before it. So the `k`
    ticks, `ONE` apart, fall on `k` different ranks for any shift below `ONE`.
    """
    bound = torch.arange(1, m + 1) * ONE
    sums = (inclusion(m, k, keep, floor, law).cumsum(0) * ONE).round().long()
    sums = sums.clamp_max(k * ONE).maximum(bound + (k - m) * ONE)
    sums = bound + (sums - bound).clamp_max(0).cummin(0).values
    return sums.to(device), (torch.arange(k) * ONE).to(device)
