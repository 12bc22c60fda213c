"""The order in which torch's DataLoader reads its examples: drawn at once, and begun in the middle."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import data as torch_data

__all__ = ["IndexOrder", "as_if_started", "has_persistent_workers", "restart_workers"]


class IndexOrder:
    """The batch sampler of a DataLoader, whose next passes may be others.

    It does not keep the loader: worker processes of loaders in reference cycles end late, and slowly.
    """

    def __init__(self, loader: torch_data.DataLoader[Any]) -> None:
        self._name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        self._whole: Any = getattr(loader, self._name)
        self._passes: list[Iterator[Any]] = []

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass with its first batch: torch asks for more iterators than it begins."""
        yield from self._passes.pop(0) if self._passes else self._whole

    def __len__(self) -> int:
        return len(self._whole)

    def pass_by(self, loader: torch_data.DataLoader[Any]) -> None:
        """Let the loader make an iterator that reads nothing."""
        self._passes.append(iter(()))
        self._iterate(loader)

    def skip(self, loader: torch_data.DataLoader[Any], batches: int) -> Iterator[Any]:
        """Return an iterator of the loader without the first batches, its order drawn as far as they have it."""
        rest = _Rest(self._whole, batches)
        self._passes.append(rest)
        iterator = self._iterate(loader)
        rest.begin()
        return iterator

    def _iterate(self, loader: torch_data.DataLoader[Any]) -> Iterator[Any]:
        attributes = vars(loader)  # a DataLoader lets nobody set these, for iterators that live
        attributes[self._name] = self
        try:
            return iter(loader)
        finally:
            attributes[self._name] = self._whole


class _Rest:
    """The batches of indices from one on, drawn when it is begun and not when it is first asked for one."""

    def __init__(self, whole: Iterable[Any], number: int) -> None:
        self._whole, self._number = whole, number
        self._batches: Iterator[Any] | None = None

    def begin(self) -> Iterator[Any]:
        """Draw what the skipped batches have drawn, or the first one."""
        if self._batches is None:
            whole = iter(self._whole)
            drawn = list(itertools.islice(whole, max(self._number, 1)))
            self._batches = itertools.chain(drawn[self._number :], whole)
        return self._batches

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.begin())


def restart_workers(loader: Any, *, persists: bool) -> IndexOrder | None:
    """Return the order of a DataLoader, with worker processes that persist as the saved run had them, or had none.

    Starting them draws from the generators, which the saved run has done in an earlier epoch.
    """
    if not isinstance(loader, torch_data.DataLoader):
        return None
    order = IndexOrder(loader)
    if has_persistent_workers(loader):
        loader._iterator = None  # noqa: SLF001  there is no public way
        if persists:
            order.pass_by(loader)
    return order


@contextmanager
def as_if_started(loader: Any, *, persists: bool) -> Iterator[None]:
    """Let a loader that has its state back start worker processes that persist without a draw that others would miss.

    The saved run has started them in an earlier epoch, and the seed that they draw is in the state.
    """
    if not (persists and has_persistent_workers(loader)):
        yield
        return
    given, loader.generator = loader.generator, torch.Generator()
    try:
        yield
    finally:
        loader.generator = given


def has_persistent_workers(loader: Any) -> bool:
    """Has a loader worker processes that stay from one epoch to the next?"""
    return isinstance(loader, torch_data.DataLoader) and loader.persistent_workers
