"""The batches of one rank: its rows of each global batch, and one end of the epoch for all ranks."""

from __future__ import annotations

import itertools
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

from ...batch import map_batch
from ...errors import CheckpointError, EngineError
from ...messages import warn
from ...parallel import bounds, mark_of
from ...ranks import Ranks
from ...state import State, length_of
from .loaders import extent_of

_ENDED = -1
"""In place of a batch, for a loader that gave none."""


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
    rows = state.batches.rows(batch) if sizes is None else sizes.popleft()
    start, stop = bounds(rows, state.ranks)
    state.is_placeholder = start == stop
    if sizes is None:
        batch = state.batches.part(batch, slice(0, 1) if state.is_placeholder else slice(start, stop))
    return batch, rows


def differing(label: str, found: Sequence[float], what: str = "rows") -> EngineError:
    """Return the error for ranks that have different data of one loader."""
    each = ", ".join(f"rank {rank}: {'?' if number < 0 else int(number)}" for rank, number in enumerate(found))
    return _different(label, f"{what}: {each}", "")


def compare_extents(loader: Any, label: str, ranks: Ranks) -> None:
    """Raise on all ranks if their loaders, which are to read the same data, differ in lengths or in their rows.

    Raises:
        EngineError: see above.
    """
    batches, rows, splits, rows_0 = zip(*ranks.table(extent_of(loader)), strict=True)
    for found, what in ((batches, "batches"), (rows, "rows of the dataset")):
        if len({*found}) > 1:
            raise differing(label, found, what)
    for marks, what, act in ((splits, "the split", "split"), (rows_0, "row 0 of the dataset", "make it")):
        if others := _others(marks):
            raise _different(
                label,
                f"{what} of rank {others} is not that of rank 0",
                f", so seed before you {act}, with torch.manual_seed(...) or generator=",
            )


def _others(found: Sequence[float]) -> str:
    """Return the ranks that have something else than rank 0."""
    return ", ".join(str(rank) for rank, own in enumerate(found) if own != found[0])


_SEED = (
    ", so give generators of its own a seed that all ranks share, and draw what its rows hold, as a collate_fn may, "
    "from such a generator too"
)


def _different(label: str, found: str, remedy: str = _SEED) -> EngineError:
    return EngineError(
        f"the loader {label!r} gave the ranks different data ({found}): each rank has to read the same data in the "
        f"same order{remedy}; for loaders of a rank's own rows give Trainer(parallel=DDP(data='local'))"
    )


def with_the_first(loader: Any, state: State) -> Iterator[Any]:
    """Return an iterator over a loader that each rank reads in full, with its first batch read, and compared.

    Raises:
        EngineError: on all ranks, if it is not the same on all of them; what a checkpoint can't hold is not compared.
    """
    iterator: Iterator[Any] = iter(loader)
    first = list(itertools.islice(iterator, 1))
    marks = [int(own) for (own,) in state.ranks.table([_mark(first[0]) if first else _ENDED])]
    if _ENDED not in marks and (others := _others(marks)):
        raise _different(str(state.dataloader_label), f"the first batch of rank {others} is not that of rank 0")
    return itertools.chain(first, iterator)


def _mark(batch: Any) -> int:
    """Return a number that differs if what a batch holds differs, as far as that can be told."""
    marks: list[int] = []

    def add(leaf: Any) -> Any:
        with suppress(CheckpointError):
            marks.append(mark_of(leaf))
        return leaf

    map_batch(batch, add)
    return zlib.crc32(repr(marks).encode())


class OfRank:
    """An iterator over this rank's rows of each batch; it tells the feed and State how many there are.

    Args:
        sizes: see `take_part_of`.
    """

    def __init__(self, batches: Iterator[Any], feed: Dealing, state: State, sizes: deque[int] | None) -> None:
        self.batches, self._feed, self._state, self._sizes = batches, feed, state, sizes
        self._may_differ = feed.is_local or length_of(state.train_dataloader) is None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = self._agreed() if self._may_differ else next(self.batches)
        feed, state = self._feed, self._state
        if feed.is_local:
            feed.rows, state.is_placeholder = state.batches.rows(batch), False
        else:
            batch, feed.rows = take_part_of(batch, self._sizes, state)
        return batch

    def _agreed(self) -> Any:
        """Return the next batch, if each rank has one; the epoch ends for all where it ends for one."""
        batch, has_one = None, True
        try:
            batch = next(self.batches)
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
