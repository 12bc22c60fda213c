"""InfoBatch's rule: which examples an epoch skips, and which of the others count for them. Knows tensors only."""

from __future__ import annotations

import torch

__all__ = ["fill_last_batch", "skip_easy"]


def skip_easy(losses: torch.Tensor, r: float, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which examples are skipped (n,), and which of the others count `1 / (1 - r)` times (n,).

    Of the examples with a loss below the mean each is skipped with probability `r`. One without a finite loss is not.

    Args:
        losses: of the examples (n,), on the CPU; +inf for one never seen.
        generator: on the CPU; one number is drawn for each example, whatever its loss.

    Example:
        >>> skipped, rescaled = skip_easy(torch.tensor([1.0, 1.0, 9.0]), 0.5, torch.Generator().manual_seed(0))
        >>> skipped, rescaled
        (tensor([ True, False, False]), tensor([False,  True, False]))
    """
    known = losses.isfinite()
    easy = known & (losses < losses[known].double().mean())
    skipped = easy & (torch.rand(len(losses), generator=generator) < r)
    return skipped, easy & ~skipped


def fill_last_batch(skipped: torch.Tensor, size: int, generator: torch.Generator) -> torch.Tensor:
    """Return which examples are skipped (n,): one less, drawn, if the last batch would have a single row.

    BatchNorm can't train on one row, and a plain epoch has such a batch always or never.

    Example:
        >>> skipped = torch.tensor([False, True, False, False, False, False])
        >>> fill_last_batch(skipped, 4, torch.Generator()).tolist()
        [False, False, False, False, False, False]
    """
    others = skipped.nonzero().flatten()
    if not len(others) or size < 2 or (len(skipped) - len(others)) % size != 1:
        return skipped
    return skipped.index_fill(0, others[torch.randint(len(others), (1,), generator=generator)], False)
