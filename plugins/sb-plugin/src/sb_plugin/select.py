"""Which rows of a batch are kept: a decision from ranks alone. Knows no model, no batch and no engine."""

from __future__ import annotations

import math
from functools import lru_cache

import torch

__all__ = ["draw_rows", "log_weights", "number_kept"]


def number_kept(n: int, keep: float) -> int:
    """Return how many of `n` rows are kept: `keep * n` rounded down, but at least one.

    Example:
        >>> number_kept(100, 0.29), number_kept(2, 0.1)
        (29, 1)
    """
    return min(n, max(1, math.floor(keep * n + 1e-9)))


@lru_cache(maxsize=32)
def log_weights(n: int, keep: float, device: torch.device) -> torch.Tensor:
    """Return the logarithm of the weight of each rank (n,), the easiest row's first.

    The weight is `((r + 0.5) / n) ** (1 / keep - 1)`: the percentile of the rank to the power that the paper calls
    beta (arXiv 1910.00762), in the form that Composer gave it.
    """
    percentiles = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    return ((1 / keep - 1) * percentiles.log()).float().to(device)


def draw_rows(scores: torch.Tensor, k: int, keep: float, generator: torch.Generator) -> torch.Tensor:
    """Draw `k` rows without replacement, hard ones rather than easy ones, and return their places, ascending (k,).

    Successive sampling: each pick takes a row that is left with a probability proportional to its weight. Adding
    Gumbel noise to the log weights and taking the `k` largest has exactly this law, with nothing to wait for on
    the device (Kool et al. 2019, arXiv 1903.06059). Rows of equal score are ranked at random. Rows whose score is
    NaN or infinite come last: the others are ranked and drawn as if those were not there.

    Args:
        scores: one per row, higher is harder (n,).
        generator: where all randomness comes from; if on another device than `scores`, the noise is copied over.

    Example:
        >>> draw_rows(torch.tensor([5.0, float("nan"), 7.0]), 2, 0.5, torch.Generator())
        tensor([0, 2])
    """
    n, device = scores.shape[0], scores.device
    shuffled = torch.randperm(n, generator=generator, device=generator.device).to(device, non_blocking=True)
    noise = torch.empty(n, device=generator.device).exponential_(generator=generator).to(device, non_blocking=True)

    last = scores.nan_to_num(nan=math.inf, posinf=math.inf, neginf=math.inf)
    ascending, place = last.index_select(0, shuffled).sort()
    keys = log_weights(n, keep, device) - noise.log_()  # -log of an exponential draw is a Gumbel draw
    keys.masked_fill_(ascending == math.inf, -math.inf)
    chosen = place.index_select(0, keys.topk(k).indices)
    return shuffled.index_select(0, chosen).sort().values
