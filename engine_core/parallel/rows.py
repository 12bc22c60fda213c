"""Rows of a global batch, dealt to the ranks: contiguous parts whose sizes differ by at most one."""

from __future__ import annotations

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
