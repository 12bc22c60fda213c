"""The batches of one rank: its rows of each global batch, and one end of the epoch for all ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

from ...batch import count_rows, slice_rows
from ...messages import warn
from ...parallel import bounds
from ...state import State, length_of


class Dealing(Protocol):
    """What a feed has to provide."""

    rows: int

    @property
    def is_local(self) -> bool:
        """Does the loader give the rows of this rank only?"""
        ...


def take_part_of(batch: Any, sizes: deque[int] | None, state: State) -> tuple[Any, int]:
    """Return this rank's part of a batch and the rows of the whole one; State says if it is a placeholder, row 0.

    Args:
        sizes: rows of the global batches, where the loader reads this rank's rows only; None: it reads all of them.
    """
    rows = count_rows(batch) if sizes is None else sizes.popleft()
    start, stop = bounds(rows, state.ranks)
    state.is_placeholder = start == stop
    if sizes is None:
        batch = slice_rows(batch, rows, *((0, 1) if state.is_placeholder else (start, stop)))
    return batch, rows


class OfRank:
    """An iterator over this rank's rows of each batch; it tells the feed and State how many there are.

    Args:
        sizes: see `take_part_of`.
    """

    def __init__(self, batches: Iterator[Any], feed: Dealing, state: State, sizes: deque[int] | None) -> None:
        self._batches, self._feed, self._state, self._sizes = batches, feed, state, sizes
        self._may_differ = feed.is_local or length_of(state.train_dataloader) is None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = self._agreed() if self._may_differ else next(self._batches)
        feed, state = self._feed, self._state
        if feed.is_local:
            feed.rows, state.is_placeholder = count_rows(batch), False
        else:
            batch, feed.rows = take_part_of(batch, self._sizes, state)
        return batch

    def _agreed(self) -> Any:
        """Return the next batch, if each rank has one; the epoch ends for all where it ends for one."""
        batch, has_one = None, True
        try:
            batch = next(self._batches)
        except StopIteration:
            has_one = False
        found = [bool(own) for (own,) in self._state.ranks.table([has_one])]
        if all(found):
            return batch
        if any(found) and not self._state.rank:
            ended = ", ".join(str(rank) for rank, has in enumerate(found) if not has)
            warn(
                f"the train_dataloader ended after batch {self._state.timestamp.batch_in_epoch} of epoch "
                f"{self._state.timestamp.epoch} on rank {ended}, and not on the others: the epoch ends there for all",
                UserWarning,
            )
        raise StopIteration
