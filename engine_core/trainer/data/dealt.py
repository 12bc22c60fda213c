"""The batches of an evaluation or a prediction, dealt to the ranks. Knows no train loader."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import torch

from ...errors import ArgumentError, EngineError
from ...messages import counted, warn
from ...randomness import GlobalGenerators, load_generator, preserve_generators
from ...state import State, length_of
from .index_order import IndexOrder
from .loaders import is_of_rank, is_skippable, own_generators, states_of_generators
from .of_rank import compare_extents, differing, take_part_of, with_the_first


def deal(
    loader: Iterable[Any], state: State, device: torch.device, *, is_local: bool, in_step: bool = True
) -> Iterator[tuple[Any, int]]:
    """Yield this rank's part of each batch, with the rows of the whole one; State says if it is a placeholder.

    One process needs no rows to go on: where they can't be counted there, they are 0.

    Args:
        is_local: does the loader give this rank's rows only? So does one with a DistributedSampler.
        in_step: do all ranks take as many batches? A rank whose own rows have ended then gets placeholders; otherwise
            the ranks need each other only to begin.

    Raises:
        EngineError: if the ranks have different batches of what should be the same data.
    """
    if state.world_size == 1:
        for batch in loader:
            try:
                rows = state.batches.rows(batch)
            except ArgumentError:
                rows = 0
            yield batch, rows
        return
    if is_local or is_of_rank(loader):
        _warn_of_repeated(loader, state)
        yield from _in_step(_as_given(loader, state), state, is_local=True) if in_step else _as_given(loader, state)
        return
    compare_extents(loader, str(state.dataloader_label), state.ranks)
    parts = _parts(*_begun(loader, state, device), state)
    yield from _in_step(parts, state, is_local=False) if in_step and length_of(loader) is None else parts


def _begun(loader: Any, state: State, device: torch.device) -> tuple[Iterator[Any], deque[int] | None]:
    """Return an iterator in the order that rank 0 draws, and the rows of its batches if it gives this rank's only."""
    ranks, own = state.ranks, own_generators(loader)
    now: Any = {"global": GlobalGenerators.capture(device).to_state(), "own": states_of_generators(loader)}
    of_first = ranks.first(now)
    with preserve_generators(device) if ranks.rank else nullcontext():
        GlobalGenerators.of_state(of_first["global"], device).restore()
        for generator, saved in zip(own, of_first["own"], strict=True):
            load_generator(generator, saved)
        if not is_skippable(loader):
            return with_the_first(loader, state), None
        order = IndexOrder(loader, ranks)
        return order.skip(loader, 0), order.sizes


def _parts(batches: Iterator[Any], sizes: deque[int] | None, state: State) -> Iterator[tuple[Any, int]]:
    """Yield this rank's part of each global batch, or what the loader has read of it, with the rows of the whole."""
    for batch in batches:
        yield take_part_of(batch, sizes, state)


def _as_given(loader: Iterable[Any], state: State) -> Iterator[tuple[Any, int]]:
    for batch in loader:
        yield batch, state.batches.rows(batch)


def _in_step(parts: Iterator[tuple[Any, int]], state: State, *, is_local: bool) -> Iterator[tuple[Any, int]]:
    """Yield until all ranks have ended; with loaders of their own rows those that have ended get placeholders."""
    label, last = str(state.dataloader_label), None
    while True:
        part, rows = next(parts, (last, -1))
        found = [int(own) for (own,) in state.ranks.table([rows])]
        if max(found) < 0:
            return
        if not is_local:
            if len({*found}) > 1:
                raise differing(label, found)
            yield part, rows
            continue
        if last is None and min(found) < 0:
            raise EngineError(f"the loader {label!r} gave no batches on rank {found.index(-1)}, and some on others")
        state.is_placeholder = rows < 0
        if rows >= 0:
            last = state.batches.part(part, slice(0, 1))
        yield part, sum(max(own, 0) for own in found)


def _warn_of_repeated(loader: Any, state: State) -> None:
    """Warn of rows that a DistributedSampler gives twice, so that all ranks have as many."""
    sampler = getattr(loader, "sampler", None)
    repeated = getattr(sampler, "total_size", 0) - (length_of(getattr(sampler, "dataset", None)) or 0)
    if is_of_rank(loader) and repeated > 0:
        warn(
            f"the DistributedSampler of the loader {state.dataloader_label!r} gives {counted(repeated, 'row', 'rows')} "
            "twice, to give all ranks as many, and results count them twice: leave it out, for each rank gets its rows "
            "anyway",
            UserWarning,
        )
