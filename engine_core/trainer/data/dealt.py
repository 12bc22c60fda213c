"""The batches of one rank, in training and in evaluations: its rows of each global batch, and one end for all ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch.utils import data as torch_data
from torch.utils.data.distributed import DistributedSampler

from ...errors import ArgumentError, EngineError
from ...messages import warn
from ...parallel import bounds
from ...randomness import GlobalGenerators, preserve_generators
from ...ranks import Ranks
from ...state import State
from .loaders import extent_of, keeps_position, of_loader, order_of, restart_generators

Ends = Literal["with the first", "with the last", "alone"]


class Dealt:
    """An iterator over this rank's rows of each batch; State says whether they are a placeholder.

    Args:
        sizes: rows of the global batches of which the loader reads this rank's part; None: each rank's loader gives
            rows of its own.
        ends: with such loaders, where all ranks end: with the first rank, or with the last one, until which the others
            get placeholders. Each rank `alone` needs no message, and no rank knows the rows of the others.

    Attributes:
        rows: of the global batch taken last.
    """

    def __init__(
        self, batches: Iterator[Any], state: State, sizes: deque[int] | None, ends: Ends = "with the first"
    ) -> None:
        self.batches, self.rows = batches, 0
        self._state, self._sizes, self._ends = state, sizes, ends
        self._last: Any = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._sizes is None:
            return self._of_own_rows()
        batch = next(self.batches)
        self.rows = self._sizes.popleft()
        start, stop = bounds(self.rows, self._state.ranks)
        self._state.is_placeholder = start == stop
        return batch

    def _of_own_rows(self) -> Any:
        state, own = self._state, -1
        for batch in self.batches:
            own = state.batches.rows(batch)
            break
        else:
            batch = self._last
        found = [own] if self._ends == "alone" else [int(rows) for (rows,) in state.ranks.table([own])]
        ended = [rank for rank, rows in enumerate(found) if rows < 0]
        if len(ended) == len(found):
            raise StopIteration
        if ended and self._ends == "with the first":
            self._warn_of_end(ended)
            raise StopIteration
        if ended and self._last is None:
            label = state.dataloader_label
            raise EngineError(f"the loader {label!r} gave no batches on rank {ended[0]}, and some on others")
        self.rows, state.is_placeholder = sum(max(rows, 0) for rows in found), own < 0
        if own >= 0 and self._ends == "with the last":
            self._last = state.batches.part(batch, slice(0, 1))
        return batch

    def _warn_of_end(self, ended: Sequence[int]) -> None:
        state = self._state
        if state.rank == 0:
            warn(
                f"the train_dataloader ended after batch {state.timestamp.batch_in_epoch} of epoch "
                f"{state.timestamp.epoch} on rank {', '.join(map(str, ended))}, and not on the others: the epoch ends "
                "there for all",
                UserWarning,
            )


def deal(
    loader: Iterable[Any], state: State, device: torch.device, *, is_local: bool, in_step: bool = True
) -> Iterator[tuple[Any, int]]:
    """Yield this rank's part of each batch of an evaluation or a prediction, with the rows of the whole one.

    One process needs no rows to go on: where they can't be counted there, they are 0.

    Args:
        is_local: does the loader give this rank's rows only?
        in_step: do all ranks take as many batches? Otherwise they need each other only to begin.
    """
    if state.world_size == 1:
        for batch in loader:
            try:
                rows = state.batches.rows(batch)
            except ArgumentError:
                rows = 0
            yield batch, rows
        return
    if is_local:
        batches = Dealt(iter(loader), state, None, "with the last" if in_step else "alone")
    else:
        check_dealable(loader, str(state.dataloader_label), state.ranks)
        with drawing_as_rank_0(loader, state, device):
            order: Any = order_of(loader, state.ranks)
            batches = Dealt(order.skip(loader, 0), state, order.sizes)
    for batch in batches:
        yield batch, batches.rows


@contextmanager
def drawing_as_rank_0(loader: Any, state: State, device: torch.device) -> Iterator[dict[str, Any]]:
    """Let the block draw what rank 0 draws; each rank keeps its own global generators for all else."""
    began = state.ranks.first({"global": GlobalGenerators.capture(device).to_state(), **of_loader(loader)})
    with preserve_generators(device) if state.rank else nullcontext():
        restart_generators(loader, began, device)
        yield began


def check_dealable(loader: Any, label: str, ranks: Ranks) -> None:
    """Raise on all ranks if the rows of a loader can't be dealt to them by index, or if the ranks have different rows.

    Raises:
        ArgumentError: for all but lists, and torch's DataLoader with batches of rows that have an index.
        EngineError: if lengths differ, or rows as far as it is known.
    """
    if (kind := _without_index(loader)) is not None:
        raise ArgumentError(
            f"the rows of the loader {label!r}, {kind}, can't be dealt to {ranks.size} ranks: give torch's DataLoader, "
            "which is read by index, or loaders of each rank's own rows and Trainer(parallel=DDP(data='local'))"
        )
    batches, rows, splits, rows_0 = zip(*ranks.table(extent_of(loader)), strict=True)
    for found, what in ((batches, "batches"), (rows, "rows of the dataset")):
        if len({*found}) > 1:
            each = ", ".join(f"rank {rank}: {'?' if n < 0 else int(n)}" for rank, n in enumerate(found))
            raise _different(label, f"{what}: {each}", "")
    for marks, what, act in ((splits, "the split", "split"), (rows_0, "row 0 of the dataset", "make it")):
        if others := [str(rank) for rank, own in enumerate(marks) if own != marks[0]]:
            found_here = f"{what} of rank {', '.join(others)} is not that of rank 0"
            remedy = f", so seed before you {act}, with torch.manual_seed(...) or generator="
            raise _different(label, found_here, remedy)


def _without_index(loader: Any) -> str | None:
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


def _different(label: str, found: str, remedy: str) -> EngineError:
    return EngineError(
        f"the loader {label!r} gave the ranks different data ({found}): each rank has to read the same data in the "
        f"same order{remedy}; for loaders of a rank's own rows give Trainer(parallel=DDP(data='local'))"
    )
