"""The order in which torch's DataLoader reads its examples, which can be drawn early and started in the middle."""

from __future__ import annotations

import hashlib
import itertools
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import data as torch_data

from ...errors import ArgumentError, EngineError
from ...parallel import bounds
from ...randomness import seed_generators
from ...ranks import Ranks
from .loaders import has_persistent_workers


class IndexOrder:
    """The batch sampler of a DataLoader, with its next passes replaceable.

    It holds no reference to the loader: workers of loaders in reference cycles end late and slowly.

    Args:
        ranks: if given, the loader reads this rank's part of each batch only.

    Attributes:
        sizes: rows of the global batches that were drawn and not yet taken.
    """

    def __init__(self, loader: torch_data.DataLoader[Any], ranks: Ranks | None = None) -> None:
        if ranks is not None and not getattr(loader, "in_order", True):
            raise ArgumentError(
                "a DataLoader with in_order=False gives each rank its batches in another order: leave in_order out"
            )
        self._ranks = ranks
        self.sizes: deque[int] = deque()
        self._name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        self._whole: Any = getattr(loader, self._name)
        self._passes: list[Iterable[Any]] = []

    def __iter__(self) -> Iterator[Any]:
        """Start a pass only at its first batch: torch creates more iterators than it uses."""
        batches = self._passes.pop(0) if self._passes else self._whole
        if self._ranks is None:
            yield from batches
            return
        for batch in batches:
            self.sizes.append(len(batch))
            start, stop = bounds(len(batch), self._ranks)
            yield batch[start:stop] if start < stop else batch[:1]  # of a rank without rows, a placeholder

    def __len__(self) -> int:
        return len(self._whole)

    def pass_by(self, loader: torch_data.DataLoader[Any]) -> None:
        """Make the loader create an iterator that reads nothing."""
        self._passes.append(iter(()))
        self._iterate(loader)

    def skip(self, loader: torch_data.DataLoader[Any], batches: int) -> Iterator[Any]:
        """Return an iterator over the loader without its first batches, with the order drawn that far."""
        rest = _Rest(self._whole, batches)
        self._passes.append(rest)
        iterator = self._iterate(loader)
        rest.begin()  # after torch has drawn the workers' seed, and before anything else draws
        if self._ranks is not None:
            self._compare(rest.first, self._ranks)
        return iterator

    def _compare(self, drawn: Any, ranks: Ranks) -> None:
        """Raise on all ranks if they don't draw the same first batch."""
        marks = [mark for (mark,) in ranks.table([zlib.crc32(repr(drawn).encode())])]
        if others := [str(rank) for rank, mark in enumerate(marks) if mark != marks[0]]:
            raise EngineError(
                f"the {type(self._whole).__name__} of a DataLoader draws other rows on rank {', '.join(others)} than "
                "on rank 0: give generators of its own a seed that all ranks share, or loaders of each rank's own rows "
                "and Trainer(parallel=DDP(data='local'))"
            )

    def _iterate(self, loader: torch_data.DataLoader[Any]) -> Iterator[Any]:
        attributes = vars(loader)  # a DataLoader forbids setting these, to protect live iterators
        given = attributes["worker_init_fn"]
        attributes[self._name] = self
        if self._ranks is not None and self._ranks.rank:
            attributes["worker_init_fn"] = _DrawingApart(self._ranks.rank, given)
        try:
            if (running := getattr(loader, "_iterator", None)) is not None:
                running._index_sampler = self  # noqa: SLF001  persistent workers keep that of their first epoch
            return iter(loader)
        finally:
            attributes[self._name], attributes["worker_init_fn"] = self._whole, given
            if (running := getattr(loader, "_iterator", None)) is not None:
                running._index_sampler = self._whole  # noqa: SLF001


class ListOrder:
    """The batches of a list, of which each rank takes its rows; like an IndexOrder otherwise."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.sizes: deque[int] = deque()

    def skip(self, loader: Any, batches: int) -> Iterator[Any]:
        """Yield this rank's part of each batch but the first ones."""
        for batch in itertools.islice(loader, batches, None):
            self.sizes.append(rows := self._ranks.batches.rows(batch))
            start, stop = bounds(rows, self._ranks)
            yield self._ranks.batches.part(batch, slice(start, stop) if start < stop else slice(0, 1))


def order_of(loader: Any, ranks: Ranks | None) -> IndexOrder | ListOrder:
    """Return the order in which a loader is read, or the part of it that one of several ranks reads."""
    return IndexOrder(loader, ranks) if ranks is None or not isinstance(loader, (list, tuple)) else ListOrder(ranks)


class _DrawingApart:
    """Lets the workers of a rank draw other numbers than those of rank 0, whose seed they have."""

    def __init__(self, rank: int, given: Callable[[int], None] | None) -> None:
        self._rank, self._given = rank, given

    def __call__(self, worker: int) -> None:
        digest = hashlib.sha256(f"{torch.initial_seed()}/rank/{self._rank}".encode()).digest()
        seed_generators(int.from_bytes(digest[:8], "big") >> 1)
        if self._given is not None:
            self._given(worker)


class _Rest:
    """The batches of indices from a number on, drawn by `begin` rather than at the first `next`."""

    def __init__(self, whole: Iterable[Any], number: int) -> None:
        self._whole, self._number, self.first = whole, number, None
        self._batches: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self.begin()

    def begin(self) -> Iterator[Any]:
        """Draw the skipped batches, or else the first one."""
        if self._batches is None:
            whole = iter(self._whole)
            drawn = list(itertools.islice(whole, max(self._number, 1)))
            self.first = drawn[0] if drawn else None
            self._batches = itertools.chain(drawn[self._number :], whole)
        return self._batches


def restart_workers(loader: Any, *, persists: bool, ranks: Ranks | None = None) -> IndexOrder | ListOrder | None:
    """Return the order of a DataLoader, with persistent workers running if the saved run had them running.

    Starting them draws from the generators, which the saved run did in an earlier epoch.
    """
    if not isinstance(loader, torch_data.DataLoader):
        return None if ranks is None else order_of(loader, ranks)
    order = IndexOrder(loader, ranks)
    if has_persistent_workers(loader):
        loader._iterator = None  # noqa: SLF001  there is no public way
        if persists:
            order.pass_by(loader)
    return order


@contextmanager
def as_if_started(loader: Any, *, persists: bool) -> Iterator[None]:
    """Let a restored loader start persistent workers without drawing from its generator.

    The saved run started them in an earlier epoch, and the seed that they draw is in the state.
    """
    if not (persists and has_persistent_workers(loader)):
        yield
        return
    given, loader.generator = loader.generator, torch.Generator()
    try:
        yield
    finally:
        loader.generator = given
