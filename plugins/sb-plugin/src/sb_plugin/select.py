"""Which rows of a batch are kept, decided from ranks alone. Independent of model, batch and engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch

from engine_core.errors import ArgumentError, ArgumentTypeError

from .arguments import Selector
from .laws import ONE, log_weights, ticks

__all__ = ["draw_rows", "draw_uniform", "draw_with", "number_kept"]

_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def number_kept(n: int, keep: float, multiple_of: int = 1) -> int:
    """Return how many of `n` rows are kept: `keep * n` rounded down to a multiple, but at least one.

    With `keep=1` all are kept, whatever the multiple.

    Example:
        >>> number_kept(100, 0.29), number_kept(100, 0.29, 8), number_kept(2, 0.1)
        (29, 24, 1)
    """
    if keep == 1:
        return n
    k = math.floor(keep * n + 1e-9)
    return min(n, max(1, k - k % multiple_of))


def draw_rows(
    scores: torch.Tensor,
    k: int,
    keep: float,
    generator: torch.Generator,
    selector: Selector = "composer",
    floor: float = 0.0,
) -> torch.Tensor:
    """Draw `k` rows without replacement, hard ones rather than easy ones, and return their positions, ascending (k,).

    Rows of equal score are ranked at random. Rows whose score is NaN or infinite come last: the `m` others are ranked
    and drawn as if those were not there. "composer" never waits for the device; "cdf" and "topk" wait once, for `m`.

    Args:
        scores: one per row (n,), higher is harder.
        generator: where all randomness comes from; if on another device than `scores`, the noise is copied over.
        selector: "composer" picks one row after another with the weights of `log_weights`; "cdf" keeps each rank with
            exactly the probability `min(1, c * weight)`, as the paper does; "topk" keeps the hardest, "uniform" any; or
            your own function, see `draw_with`.
        floor: the share of the uniform distribution, in [0, 1). "composer" keeps each row with at least
            `1 - (1 - floor / m) ** k`, "cdf" and "topk" with at least `floor * k / m`.

    Example:
        >>> draw_rows(torch.tensor([5.0, float("nan"), 7.0]), 2, 0.5, torch.Generator())
        tensor([0, 2])
    """
    if callable(selector):
        return draw_with(selector, scores, k, generator)
    if selector == "uniform":
        return draw_uniform(scores.shape[0], k, generator, scores.device)
    ascending, places = _ranked(scores, generator)
    if selector == "composer":
        ranks = _successive(ascending, k, keep, generator, floor)
    else:
        m = int(ascending.isfinite().sum())
        ranks = _systematic(m, k, keep, generator, selector, floor).to(scores.device, non_blocking=True)
    return places.index_select(0, ranks).sort().values


def _ranked(scores: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scores in ascending order, with infinity for those that are not finite, and their positions."""
    shuffled = torch.randperm(scores.shape[0], generator=generator, device=generator.device)
    shuffled = shuffled.to(scores.device, non_blocking=True)
    last = scores.nan_to_num(nan=math.inf, posinf=math.inf, neginf=math.inf)
    ascending, order = last.index_select(0, shuffled).sort()
    return ascending, shuffled.index_select(0, order)


def _successive(ascending: torch.Tensor, k: int, keep: float, generator: torch.Generator, floor: float) -> torch.Tensor:
    """Draw `k` ranks, each pick among the remaining ones with probabilities proportional to their weights.

    Adding Gumbel noise to the log weights and taking the `k` largest has exactly this distribution, without waiting
    for the device (Kool et al. 2019, arXiv 1903.06059).
    """
    n, device = ascending.shape[0], ascending.device
    noise = torch.empty(n, device=generator.device).exponential_(generator=generator).to(device, non_blocking=True)
    logs, unfit = log_weights(n, keep, device), ascending == math.inf
    if floor:
        logs = logs.masked_fill(unfit, -math.inf).log_softmax(0) + math.log1p(-floor)
        logs = torch.logaddexp(logs, math.log(floor) - (~unfit).sum().log())
    keys = logs - noise.log_()  # -log of an exponential draw is a Gumbel draw
    keys.masked_fill_(unfit, -math.inf)
    return keys.topk(k).indices


def _systematic(m: int, k: int, keep: float, generator: torch.Generator, law: str, floor: float) -> torch.Tensor:
    """Draw `k` ranks, each with its probability in `inclusion`, from one uniform number (Madow 1949)."""
    if k >= m:
        return torch.arange(k)
    sums, firsts = ticks(m, k, keep, floor, law, generator.device)
    shift = torch.randint(ONE, (), generator=generator, device=generator.device)
    return torch.searchsorted(sums, firsts + shift, right=True)


def draw_uniform(n: int, k: int, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    """Draw `k` of `n` rows, all sets equally likely, and return their positions, ascending (k,).

    Example:
        >>> draw_uniform(3, 3, torch.Generator(), torch.device("cpu"))
        tensor([0, 1, 2])
    """
    shuffled = torch.randperm(n, generator=generator, device=generator.device)
    return shuffled[:k].to(device, non_blocking=True).sort().values


def draw_with(
    selector: Callable[[torch.Tensor, int, torch.Generator], torch.Tensor],
    scores: torch.Tensor,
    k: int,
    generator: torch.Generator,
) -> torch.Tensor:
    """Let the user's function draw `k` rows, and return their positions, ascending (k,).

    It gets a copy of the scores, which it may change and keep.

    Raises:
        TypeError: if it does not return a tensor of whole numbers, but a list or a mask, for example.
        ValueError: if these are not `k` different positions of rows.

    Example:
        >>> draw_with(lambda scores, k, generator: scores.topk(k).indices, torch.tensor([5.0, 1.0, 7.0]), 2, None)
        tensor([0, 2])
    """
    n, name = scores.shape[0], getattr(selector, "__qualname__", type(selector).__name__)
    rows = selector(scores.detach().clone(), k, generator)
    what, remedy = f"the selector {name} returned", f"return the positions of {k} rows, as scores.topk(k).indices does"
    if not isinstance(rows, torch.Tensor):
        raise ArgumentTypeError(f"{what} {rows!r} ({type(rows).__name__}), which is not a tensor: {remedy}")
    if rows.dtype not in _WHOLE:
        raise ArgumentTypeError(f"{what} a tensor of {rows.dtype}, not of whole numbers: {remedy}")
    if rows.shape != (k,):
        raise ArgumentError(f"{what} a tensor of shape {tuple(rows.shape)}, not ({k},): {remedy}")
    ascending = rows.to(scores.device, torch.long).sort().values
    places = ascending.tolist()
    if places[0] < 0 or places[-1] >= n:
        wrong = places[0] if places[0] < 0 else places[-1]
        raise ArgumentError(f"{what} the position {wrong}, but there are only 0 to {n - 1}: {remedy}")
    if len(set(places)) < k:
        twice = next(place for place, other in pairwise(places) if place == other)
        raise ArgumentError(f"{what} the position {twice} more than once: return {k} different ones")
    return ascending
