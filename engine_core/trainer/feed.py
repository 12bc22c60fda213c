"""The train loader as something that has a position: begun, saved in mid-epoch, and gone on with in another process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import data as torch_data
from torch.utils.data.distributed import DistributedSampler

from ..errors import CheckpointError
from ..randomness import GlobalGenerators
from ..state import State, length_of

__all__ = ["Feed", "enter_loader", "why_inexact"]

_KNOWN_SAMPLERS = (
    torch_data.RandomSampler,
    torch_data.SequentialSampler,
    torch_data.SubsetRandomSampler,
    torch_data.WeightedRandomSampler,
    DistributedSampler,
)
"""Samplers whose order is a function of the generators at the start of the epoch, and of the epoch."""


class Feed:
    """Begins epochs of the train loader, and knows what it takes to go on in the middle of one.

    A loader with `state_dict` tells its position itself. For any other the generators are kept as they were when the
    epoch began: beginning it once more with them gives the same batches, of which those that were trained on are
    left out. With samplers of torch's own nothing is read for that; of other iterables the batches are read again.
    """

    def __init__(self, state: State, device: torch.device) -> None:
        self._state = state
        self._device = device
        self._began: dict[str, Any] = {}

    def start_epoch(self) -> Iterator[Any]:
        """Return an iterator over the train loader; a distributed sampler is told the epoch."""
        loader = self._enter_epoch()
        self._began = {"global": GlobalGenerators.capture(self._device), "own": [g.get_state() for g in _own(loader)]}
        return iter(loader)

    def position(self) -> dict[str, Any]:
        """Return what `resume` needs, for an epoch that has begun."""
        loader: Any = self._state.train_dataloader
        if _keeps_position(loader):
            return {"loader": loader.state_dict()}
        return {"global": self._began["global"].to_state(), "own": list(self._began["own"])} if self._began else {}

    def resume(self, position: Mapping[str, Any]) -> Iterator[Any]:
        """Return an iterator over what is left of the epoch; the global generators are whatever that makes of them.

        Raises:
            CheckpointError: if this loader can't be the one that was saved.
        """
        loader: Any = self._enter_epoch()
        if _keeps_position(loader):
            if "loader" not in position:
                raise CheckpointError(
                    "the train_dataloader has a state_dict, and the checkpoint is of one that has none"
                )
            loader.load_state_dict(position["loader"])
            return iter(loader)
        if "global" not in position:
            raise CheckpointError("the checkpoint is of a train_dataloader with a state_dict, and this one has none")
        own = _own(loader)
        if len(own) != len(position["own"]):
            raise CheckpointError(
                "the checkpoint is of a train_dataloader with another number of generators of its own"
            )
        self._began = {"global": GlobalGenerators.of_state(position["global"], self._device), "own": position["own"]}
        self._began["global"].restore()
        for generator, saved in zip(own, position["own"], strict=True):
            generator.set_state(saved)
        return _without_the_first(loader, self._state.timestamp.batch_in_epoch)

    def _enter_epoch(self) -> Any:
        enter_loader(self._state)
        loader: Any = self._state.train_dataloader
        set_epoch = getattr(getattr(loader, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self._state.timestamp.epoch)
        return loader


def enter_loader(state: State) -> None:
    """Make the train loader, as it is now, the one in work."""
    state.dataloader, state.dataloader_label = state.train_dataloader, "train"
    state.dataloader_len = length_of(state.train_dataloader)


def why_inexact(loader: Iterable[Any]) -> str | None:
    """Return why a run with this loader can't be resumed exactly in mid-epoch, as far as can be seen; None: it can.

    Example:
        >>> why_inexact([1, 2]), why_inexact(torch_data.DataLoader([1, 2], shuffle=True))
        (None, None)
    """
    if _keeps_position(loader) or isinstance(loader, (list, tuple)):
        return None
    remedy = "give it state_dict() and load_state_dict(state), or use torchdata's StatefulDataLoader"
    if not isinstance(loader, torch_data.DataLoader):
        return f"a {type(loader).__name__} has no state_dict, so its batches are read again: {remedy}"
    if isinstance(loader.dataset, torch_data.IterableDataset):
        return f"its {type(loader.dataset).__name__} is iterable, so its examples are read again: {remedy}"
    sampler = _sampler_of(loader)
    if sampler is None or type(sampler) not in _KNOWN_SAMPLERS:
        kind = type(loader.batch_sampler if sampler is None else sampler).__name__
        return f"its sampler, a {kind}, has no state_dict, so its batches are read again: {remedy}"
    return None


def _keeps_position(loader: Any) -> bool:
    return callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))


def _sampler_of(loader: Any) -> Any:
    """Return the sampler that torch's batch sampler of a DataLoader takes indices from; None: there is no such."""
    batches = getattr(loader, "batch_sampler", None)
    sampler: Any = batches.sampler if type(batches) is torch_data.BatchSampler else None
    return sampler.whole if isinstance(sampler, _Skipping) else sampler


def _own(loader: Any) -> list[torch.Generator]:
    """Return the generators that were given to a DataLoader or its sampler."""
    given = [getattr(owner, "generator", None) for owner in (loader, getattr(loader, "sampler", None))]
    unique = {id(generator): generator for generator in given if isinstance(generator, torch.Generator)}
    return list(unique.values())


def _without_the_first(loader: Any, batches: int) -> Iterator[Any]:
    """Return an iterator over a loader without its first batches."""
    if isinstance(loader, (list, tuple)):
        rest: Iterator[Any] = iter(loader[batches:])
        return rest
    if isinstance(loader, torch_data.DataLoader) and why_inexact(loader) is None:
        return _skipped(loader, batches)
    iterator: Iterator[Any] = iter(loader)
    for _ in range(batches):
        try:
            next(iterator)
        except StopIteration:
            raise CheckpointError(
                f"the train_dataloader has less than the {batches} batches of the saved run"
            ) from None
    return iterator


class _Skipping:
    """A sampler that leaves out the first indices of another, once."""

    def __init__(self, sampler: Any, number: int) -> None:
        self.whole, self._number = sampler, number
        self._rest: Iterator[Any] | None = None
        self._is_drawn = False

    def draw(self) -> None:
        """Draw the order now, while the generators are as they were."""
        if not self._is_drawn:
            self._is_drawn = True
            self._rest = iter(self.whole)
            for _ in range(self._number):
                next(self._rest, None)

    def __iter__(self) -> Iterator[Any]:
        self.draw()
        rest, self._rest = self._rest, None
        return iter(self.whole) if rest is None else rest

    def __len__(self) -> int:
        return len(self.whole)


def _skipped(loader: Any, batches: int) -> Iterator[Any]:
    """Return an iterator of a DataLoader that begins after some batches, without reading their examples."""
    batch_sampler = loader.batch_sampler
    sampler = batch_sampler.sampler
    skipping = batch_sampler.sampler = _Skipping(sampler, batches * batch_sampler.batch_size)
    try:
        iterator = iter(loader)
        skipping.draw()
    except BaseException:
        batch_sampler.sampler = sampler
        raise
    return _until_begun(iterator, batch_sampler, sampler)


def _until_begun(iterator: Iterator[Any], batch_sampler: Any, sampler: Any) -> Iterator[Any]:
    """Put the loader's own sampler back when torch's batch sampler has begun, which may be as late as here."""
    try:
        first = next(iterator, None)
    finally:
        batch_sampler.sampler = sampler
    if first is not None:
        yield first
        yield from iterator
