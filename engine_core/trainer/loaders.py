"""What can be seen of a loader, and the order of a DataLoader."""

from __future__ import annotations

import functools
import hashlib
import itertools
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.utils import data as torch_data
from torch.utils.data.distributed import DistributedSampler

from ..errors import ArgumentError, CheckpointError, EngineError
from ..parallel import mark_of
from ..randomness import (
    AnyGenerator,
    GlobalGenerators,
    is_generator,
    load_generator,
    seed_generators,
    state_of_generator,
)
from ..ranks import Ranks, share
from ..state import length_of

_KNOWN_SAMPLERS = (
    torch_data.RandomSampler,
    torch_data.SequentialSampler,
    torch_data.SubsetRandomSampler,
    torch_data.WeightedRandomSampler,
    DistributedSampler,
)
"""Samplers whose order is a function of the generators at the start of the epoch, and of the epoch."""
_PARTS = (torch_data.DataLoader, torch_data.Sampler, torch_data.Dataset)
_WRAPPED = ("batch_sampler", "dataset", "loader", "sampler")
"""Attributes that hold a part of a loader, whatever its class; with an s, several."""


def why_inexact(loader: Iterable[Any]) -> str | None:
    """Return why a run with this loader can't be resumed exactly in mid-epoch as far as can be seen; None: it can."""
    if keeps_position(loader) or isinstance(loader, (list, tuple)):
        return None
    remedy = "give it state_dict() and load_state_dict(state), or use torchdata's StatefulDataLoader"
    if not isinstance(loader, torch_data.DataLoader):
        return f"a {type(loader).__name__} has no state_dict, so its batches are read again: {remedy}"
    if isinstance(loader.dataset, torch_data.IterableDataset):
        return f"its {type(loader.dataset).__name__} is iterable, so its examples are read again: {remedy}"
    if type(loader).__iter__ is not torch_data.DataLoader.__iter__:
        return f"a {type(loader).__name__} has an __iter__ of its own, so its batches are read again: {remedy}"
    sampler = _sampler_of(loader)
    # Exactly these types: the order of a subclass may depend on anything.
    if sampler is None or type(sampler) not in _KNOWN_SAMPLERS:
        kind = type(loader.batch_sampler if sampler is None else sampler).__name__
        return f"its sampler, a {kind}, has no state_dict, so its batches are read again: {remedy}"
    return None


def keeps_position(loader: Any) -> bool:
    """Does the loader save its own position, as torchdata's StatefulDataLoader does?"""
    return callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))


def _sampler_of(loader: Any) -> Any:
    """Return the sampler that a DataLoader's torch BatchSampler takes indices from, or None."""
    batches = getattr(loader, "batch_sampler", None)
    return batches.sampler if type(batches) is torch_data.BatchSampler else None


def own_generators(loader: Any) -> list[AnyGenerator]:
    """Return the generators of torch, NumPy and Python that a loader holds: it, its samplers, or its dataset."""
    # In an order that stays: a checkpoint has their states by place. A sampler often shares its loader's.
    found = [value for part in parts_of(loader) for value in vars(part).values() if is_generator(value)]
    return [*{id(generator): generator for generator in found}.values()]


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell those of a loader's samplers that ask for it which epoch begins, as a DistributedSampler does."""
    for part in parts_of(loader)[1:]:
        if not isinstance(part, torch_data.Dataset) and callable(tell := getattr(part, "set_epoch", None)):
            tell(epoch)


def parts_of(loader: Any) -> list[Any]:
    """Return a loader, its samplers and its dataset, and what these wrap; each once."""
    parts, seen = [loader] if hasattr(loader, "__dict__") else [], {id(loader)}
    for part in parts:  # which grows
        for name, value in vars(part).items():
            public = name.lstrip("_")
            are_parts = public[-1:] == "s" and public[:-1] in _WRAPPED and type(value) in (list, tuple)
            is_part = are_parts or public in _WRAPPED
            for each in value if are_parts else [value]:
                if (is_part or isinstance(each, _PARTS)) and hasattr(each, "__dict__") and id(each) not in seen:
                    parts.append(each)
                    seen.add(id(each))
    return parts


def is_skippable(loader: Any) -> bool:
    """Can batches be skipped without reading them?"""
    return isinstance(loader, torch_data.DataLoader) and not keeps_position(loader) and why_inexact(loader) is None


def size_of(loader: Any) -> dict[str, int | None]:
    """Return batch size and number of batches, as far as they are known."""
    sizes = [getattr(owner, "batch_size", None) for owner in (loader, getattr(loader, "batch_sampler", None))]
    return {"batch_size": next((n for n in sizes if type(n) is int), None), "batches": length_of(loader)}


def extent_of(loader: Any) -> list[int]:
    """Return what tells whether ranks have the same data, as far as it is known without drawing.

    That is: batches, rows of the dataset, -1 if unknown, and marks of the rows that a split chose and of row 0.
    """
    dataset, splits, rows_0 = getattr(loader, "dataset", None), list[int](), list[int]()
    if isinstance(loader, (list, tuple)):
        with suppress(CheckpointError):
            rows_0.append(mark_of(loader[:1]))
    parts = [dataset, _sampler_of(loader)]
    for part in parts:  # which grows
        if isinstance(part, torch_data.ConcatDataset):
            parts += part.datasets
        elif isinstance(part, (torch_data.Subset, torch_data.SubsetRandomSampler)):
            parts.append(getattr(part, "dataset", None))
            with suppress(TypeError, ValueError, RuntimeError):  # a dataset may have rows by name
                # All of a million take 100 ms, and every nth tells as well: a row left out moves those behind it.
                some = part.indices[:: 1 + len(part.indices) // 1000]
                splits.append(mark_of(torch.as_tensor(some)))
        elif type(part) is torch_data.TensorDataset:  # to read another may draw, or take long
            with suppress(CheckpointError, RuntimeError):  # as of a sparse tensor
                rows_0.append(mark_of([tensor[:1] for tensor in part.tensors]))
    batches, rows = (-1 if length is None else length for length in map(length_of, (loader, dataset)))
    return [batches, rows, *(zlib.crc32(repr(marks).encode()) for marks in (splits, rows_0))]


def without_index(loader: Any) -> str | None:
    """Return what a loader is that is not read by index, from a position that all ranks know."""
    kind = f"a {type(loader).__name__}"
    if isinstance(loader, (list, tuple)):
        return None
    if not isinstance(loader, torch_data.DataLoader) or type(loader).__iter__ is not torch_data.DataLoader.__iter__:
        return kind
    if isinstance(loader.dataset, torch_data.IterableDataset):
        return f"{kind} of an IterableDataset"
    if loader.batch_sampler is None:
        return f"{kind} with batch_size=None"
    samplers = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    if any(isinstance(sampler, DistributedSampler) for sampler in samplers):
        return f"{kind} with a DistributedSampler"
    return f"{kind} with a position of its own" if keeps_position(loader) else None


def has_persistent_workers(loader: Any) -> bool:
    """Does a loader have workers that persist from one epoch to the next?"""
    return isinstance(loader, torch_data.DataLoader) and loader.persistent_workers


def of_loader(loader: Any) -> dict[str, Any]:
    """Return the states of the loader's own generators, and whether it has persistent workers."""
    has_workers = getattr(loader, "_iterator", None) is not None and has_persistent_workers(loader)
    return {"own": [state_of_generator(generator) for generator in own_generators(loader)], "persists": has_workers}


def restart_generators(loader: Any, began: Any, device: torch.device) -> None:
    """Reset the global generators and a loader's own to the states that they had when its pass began."""
    try:
        then = GlobalGenerators.of_state(entry_of(began, "global", dict), device)
    except ArgumentError as error:
        raise CheckpointError(f"a dataloader can't restart its saved pass: {error}") from error
    then.restore()
    put_back(loader, entry_of(began, "own", list))


def entry_of(position: Any, key: str, *kinds: type) -> Any:
    """Return an entry of a saved position, which has to be of one of these types."""
    value = position.get(key) if isinstance(position, Mapping) else position
    if type(value) not in kinds:
        raise CheckpointError(f"the checkpoint has no valid position of the train_dataloader: {key} is {value!r:.80}")
    return value


def put_back(loader: Any, states: list[Any]) -> None:
    """Put a loader's own generators into saved states."""
    generators = own_generators(loader)
    if len(generators) != len(states):
        raise CheckpointError(
            f"the checkpoint has {len(states)} generators for a train_dataloader with {len(generators)}"
        )
    for generator, saved in zip(generators, states, strict=True):
        try:
            load_generator(generator, saved)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(f"the train_dataloader's generator can't load its state: {error}") from error


class IndexOrder:
    """The batch sampler of a DataLoader, whose next passes can be replaced; with `ranks` it yields this rank's part.

    It holds no reference to the loader: workers of loaders in reference cycles end late and slowly.
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
        self._given: torch_data.BatchSampler | None = None
        self._passes: list[Callable[[], Iterable[Any]]] = []

    def follow(self, order: torch.Tensor) -> IndexOrder:
        """Read the examples at these places (n,) instead of the sampler's; return itself."""
        self._given = in_batches(self._whole, order)
        return self

    def __iter__(self) -> Iterator[Any]:
        """Start a pass only at its first batch: torch creates more iterators than it uses."""
        batches = self._passes.pop(0)() if self._passes else self._source
        if self._ranks is None:
            yield from batches
            return
        for batch in batches:
            self.sizes.append(len(batch))
            start, stop = share(len(batch), self._ranks.rank, self._ranks.size)
            yield batch[start:stop] if start < stop else batch[:1]  # of a rank without rows, a placeholder

    def __len__(self) -> int:
        return len(self._source)

    @property
    def _source(self) -> Any:
        return self._whole if self._given is None else self._given

    def pass_by(self, loader: torch_data.DataLoader[Any]) -> None:
        """Make the loader create an iterator that reads nothing."""
        self._passes.append(tuple)
        self._iterate(loader)

    def skip(self, loader: torch_data.DataLoader[Any], batches: int) -> Iterator[Any]:
        """Return an iterator over the loader without its first batches, with the order drawn that far."""
        drawn = list[Any]()

        @functools.cache
        def rest() -> Iterator[Any]:
            whole = iter(self._source)
            drawn.extend(itertools.islice(whole, max(batches, 1)))
            return itertools.chain(drawn[batches:], whole)

        self._passes.append(rest)
        iterator = self._iterate(loader)
        rest()  # after torch has drawn the workers' seed, and before anything else draws
        if self._ranks is None:
            return iterator
        found = self._given.sampler if self._given is not None else drawn[0] if drawn else None
        mark = zlib.crc32(repr(found).encode())
        marks = [mark for (mark,) in self._ranks.table([mark])]
        if others := [str(rank) for rank, mark in enumerate(marks) if mark != marks[0]]:
            raise EngineError(
                f"the {type(self._whole).__name__} of a DataLoader draws other rows on rank {', '.join(others)} than "
                "on rank 0: give generators of its own a seed that all ranks share, or loaders of each rank's own rows "
                "and Trainer(parallel=DDP(data='local'))"
            )
        return iterator

    def _iterate(self, loader: torch_data.DataLoader[Any]) -> Iterator[Any]:
        attributes = vars(loader)  # a DataLoader forbids setting these, to protect live iterators
        given = attributes["worker_init_fn"]
        attributes[self._name] = self
        if self._ranks is not None and self._ranks.rank:
            attributes["worker_init_fn"] = functools.partial(_draw_apart, self._ranks.rank, given)
        try:
            if (running := getattr(loader, "_iterator", None)) is not None:
                running._index_sampler = self  # noqa: SLF001  persistent workers keep that of their first epoch
            return iter(loader)
        finally:
            attributes[self._name], attributes["worker_init_fn"] = self._whole, given
            if (running := getattr(loader, "_iterator", None)) is not None:
                running._index_sampler = self._whole  # noqa: SLF001


def in_batches(batches: torch_data.BatchSampler, order: torch.Tensor) -> torch_data.BatchSampler:
    """Return the batches of examples in an order, as large as those of a loader's own batch sampler."""
    return torch_data.BatchSampler(order.tolist(), batches.batch_size, batches.drop_last)


def checked_order(loader: Any, indices: Any) -> torch.Tensor:
    """Return an order (n,) in which a loader's examples can be read, as a copy.

    Raises:
        ArgumentError: (a ValueError) if they can't.
    """
    own: Any = getattr(loader, "batch_sampler", None)
    if (kind := without_index(loader)) is None and type(own) is not torch_data.BatchSampler:
        what = f"{type(own).__name__} of its own" if isinstance(loader, torch_data.DataLoader) else "no sampler"
        kind = f"a {type(loader).__name__} with {what}"
    if kind is not None:
        raise ArgumentError(
            f"the examples of the train_dataloader, {kind}, can't be put in order: give "
            "DataLoader(dataset, batch_size=..., shuffle=True), whose dataset has examples by index"
        )
    order, size = torch.as_tensor(indices), length_of(loader.dataset)
    if order.dim() != 1 or order.dtype is torch.bool or order.is_floating_point() or order.is_complex():
        raise ArgumentError(f"an epoch's order has to be whole numbers (n,), not {order.dtype} {tuple(order.shape)}")
    order = order.to("cpu", torch.int64, copy=True)
    if not len(in_batches(own, order)):
        raise ArgumentError(f"an epoch's order of {len(order)} examples gives no batch: leave no epoch empty")
    lowest, highest = (int(each) for each in order.aminmax())
    if lowest < 0 or (size is not None and highest >= size):
        raise ArgumentError(f"an epoch's order goes from {lowest} to {highest}, and the dataset has {size} examples")
    return order


def saved_order(loader: Any, order: Any) -> torch.Tensor | None:
    """Return the order of a saved epoch, None if it had none; raise a CheckpointError for what is not this loader's."""
    try:
        return None if order is None else checked_order(loader, order)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"the checkpoint has no valid order of the train_dataloader: {error}") from error


class ListOrder:
    """The batches of a list, of which each rank takes its rows; like an IndexOrder otherwise."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.sizes: deque[int] = deque()

    def skip(self, loader: Any, batches: int) -> Iterator[Any]:
        """Yield this rank's part of each batch but the first ones."""
        for batch in itertools.islice(loader, batches, None):
            self.sizes.append(rows := self._ranks.batches.rows(batch))
            start, stop = share(rows, self._ranks.rank, self._ranks.size)
            yield self._ranks.batches.part(batch, slice(start, stop) if start < stop else slice(0, 1))


def order_of(loader: Any, ranks: Ranks | None) -> IndexOrder | ListOrder:
    """Return the order in which a loader is read, or the part of it that one of several ranks reads."""
    return IndexOrder(loader, ranks) if ranks is None or not isinstance(loader, (list, tuple)) else ListOrder(ranks)


def _draw_apart(rank: int, given: Callable[[int], None] | None, worker: int) -> None:
    """Let the workers of a rank draw other numbers than those of rank 0, whose seed they have."""
    digest = hashlib.sha256(f"{torch.initial_seed()}/rank/{rank}".encode()).digest()
    seed_generators(int.from_bytes(digest[:8], "big") >> 1)
    if given is not None:
        given(worker)


def restart_workers(loader: Any, *, persists: bool, ranks: Ranks | None = None) -> IndexOrder | ListOrder | None:
    """Return the order of a DataLoader, with persistent workers running if the saved run had them."""
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
    """Let a restored loader start persistent workers without drawing: the seed that they draw is in its state."""
    if not (persists and has_persistent_workers(loader)):
        yield
        return
    given, loader.generator = loader.generator, torch.Generator()
    try:
        yield
    finally:
        loader.generator = given
