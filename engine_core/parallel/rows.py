"""Rows of a global batch, dealt to the ranks: contiguous parts whose sizes differ by at most one."""

from __future__ import annotations

from typing import Any

import torch

from ..batch import Batches, map_batch
from ..ranks import Ranks


def bounds(rows: int, ranks: Ranks, rank: int | None = None) -> tuple[int, int]:
    """Return where a rank's part of the rows begins and ends, this one's by default; the first ranks have one more.

    Example:
        >>> bounds(5, Ranks())
        (0, 5)
    """
    each, more = divmod(rows, ranks.size)
    rank = ranks.rank if rank is None else rank
    start = rank * each + min(rank, more)
    return start, start + each + (rank < more)


def placeholder_of(batch: Any, batches: Batches) -> Any:
    """Return row 0 of a batch, for a rank without rows; numbers that are not finite become 0.

    Its loss counts 0 times. But a row that was dropped may hold NaN, and the gradient of 0 times NaN is NaN.
    """

    def finite(leaf: Any) -> Any:
        is_tensor = isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())
        return torch.nan_to_num(leaf, 0.0, 0.0, 0.0) if is_tensor else leaf

    return map_batch(batches.part(batch, slice(0, 1)), finite)
