"""Rows of a global batch, dealt to the ranks: contiguous parts whose sizes differ by at most one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..batch import count_rows, slice_rows
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


def part_of(batch: Any, ranks: Ranks) -> tuple[Any, int, bool]:
    """Return this rank's rows of a global batch, the number of all rows, and whether the part is a placeholder.

    A placeholder is row 0 of the batch, for a rank without rows.
    """
    rows = count_rows(batch)
    start, stop = bounds(rows, ranks)
    is_placeholder = start == stop
    return slice_rows(batch, rows, *((0, 1) if is_placeholder else (start, stop))), rows, is_placeholder


def indices_of(batch: Sequence[Any], ranks: Ranks) -> Sequence[Any]:
    """Return this rank's part of a global batch's indices; the first one as a placeholder."""
    start, stop = bounds(len(batch), ranks)
    return batch[start:stop] if start < stop else batch[:1]
