"""Rows that change ranks: what is sent from where to where, and what a batch is made of afterwards."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist

from ..batch import map_rows
from ..checkpoint import flatten
from ..errors import CheckpointError
from ..ranks import Ranks
from .rows import bounds

CAN_NOT_MOVE = -1


class Move:
    """How the rows at `index` of the global batch are dealt: from the ranks that have them, to those that get them.

    Args:
        counts: how many rows each rank has, in the order of the global batch.
        index: of the rows that are dealt; rank r gets part r of them.
    """

    def __init__(self, counts: Sequence[int], index: Sequence[int], ranks: Ranks) -> None:
        ends = list(accumulate(counts))
        self._ranks = ranks
        self._start = ends[ranks.rank] - counts[ranks.rank]
        self._index = index
        self._owners = [bisect_right(ends, row) for row in index]
        self._parts = [range(*bounds(len(index), ranks, rank)) for rank in range(ranks.size)]

    @property
    def is_needed(self) -> bool:
        """Does any row change ranks?"""
        return any(self._owners[place] != rank for rank, part in enumerate(self._parts) for place in part)

    def rows_for(self, rank: int) -> list[int]:
        """Return which of this rank's rows another one gets, or those that it keeps."""
        me = self._ranks.rank
        return [self._index[place] - self._start for place in self._parts[rank] if self._owners[place] == me]

    def staying(self) -> list[int]:
        """Return which of this rank's rows are dealt, to whichever rank."""
        me = self._ranks.rank
        return [row - self._start for row, owner in zip(self._index, self._owners, strict=True) if owner == me]

    def number_from(self, rank: int) -> int:
        """Return how many rows this rank gets from another one."""
        return sum(self._owners[place] == rank for place in self._parts[self._ranks.rank])

    def order(self) -> list[int]:
        """Return, for rows that lie in the order of the ranks that gave them, the order of the index."""
        part = [self._owners[place] for place in self._parts[self._ranks.rank]]
        lie = sorted(range(len(part)), key=part.__getitem__)
        return sorted(range(len(part)), key=lie.__getitem__)


def signature_of(batch: Any, held: int) -> int:
    """Return a number that is equal on two ranks if the rows of their batches can be put together.

    It is `CAN_NOT_MOVE` for what can't be sent.
    """
    described = list[Any]()
    for leaf in _leaves(batch, held):
        if isinstance(leaf, torch.Tensor):
            if leaf.layout is not torch.strided or leaf.is_quantized or leaf.is_nested:
                return CAN_NOT_MOVE
            described.append((leaf.dtype, leaf.device.type, tuple(leaf.shape[1:])))
            continue
        try:
            flatten(leaf, "batch", {})
        except CheckpointError:
            return CAN_NOT_MOVE
        described.append(type(leaf))
    return zlib.crc32(repr(described).encode())


def moved(batch: Any, held: int, move: Move, ranks: Ranks, call: Callable[[Callable[[], Any]], None]) -> Any:
    """Return this rank's part of the rows that `move` deals, in a batch like the one that it has.

    Args:
        held: how many rows the batch has, a placeholder too.
        call: runs a collective.
    """
    leaves = _leaves(batch, held)
    got: dict[int, Any] = {}
    for device in dict.fromkeys(leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)):
        there = {n: t for n, t in enumerate(leaves) if isinstance(t, torch.Tensor) and t.device == device}
        got.update(_moved_tensors(there, move, ranks, call))
    others = {str(n): leaf for n, leaf in enumerate(leaves) if n not in got}
    if others:
        offers = {
            n: [[leaf[row] for row in move.rows_for(rank)] for rank in range(ranks.size)] for n, leaf in others.items()
        }
        given = ranks.each(offers)
        for n, leaf in others.items():
            rows = [row for offer in given for row in offer[n][ranks.rank]]
            got[int(n)] = type(leaf)(rows[place] for place in move.order())
    numbered = iter(range(len(leaves)))
    return map_rows(batch, held, lambda _: got[next(numbered)])


def _leaves(batch: Any, held: int) -> list[Any]:
    """Return what has rows in a batch, in the order in which `map_rows` meets it."""
    leaves: list[Any] = []
    map_rows(batch, held, leaves.append)
    return leaves


def _moved_tensors(
    leaves: dict[int, torch.Tensor], move: Move, ranks: Ranks, call: Callable[[Callable[[], Any]], None]
) -> dict[int, torch.Tensor]:
    """Exchange the rows of tensors on one device, as bytes in one message."""
    device = next(iter(leaves.values())).device
    widths = {n: leaf[:1].numel() * leaf.element_size() for n, leaf in leaves.items()}
    others = [rank for rank in range(ranks.size) if rank != ranks.rank]
    sent, received = [0] * ranks.size, [0] * ranks.size
    packed = [torch.empty(0, dtype=torch.uint8, device=device)]
    for rank in others:
        index = torch.tensor(move.rows_for(rank), dtype=torch.long, device=device)
        packed += [leaf.detach().index_select(0, index).flatten().view(torch.uint8) for leaf in leaves.values()]
        sent[rank] = len(index) * sum(widths.values())
        received[rank] = move.number_from(rank) * sum(widths.values())
    buffer = torch.empty(sum(received), dtype=torch.uint8, device=device)
    call(lambda: dist.all_to_all_single(buffer, torch.cat(packed), received, sent))
    own = torch.tensor(move.rows_for(ranks.rank), dtype=torch.long, device=device)
    pieces: dict[int, list[torch.Tensor]] = {n: [] for n in leaves}
    place = 0
    for rank in range(ranks.size):
        for n, leaf in leaves.items():
            if rank == ranks.rank:
                pieces[n].append(leaf.index_select(0, own))
                continue
            rows = move.number_from(rank)
            piece = buffer[place : place + rows * widths[n]].clone()  # a view of other values needs a start of its own
            pieces[n].append(piece.view(leaf.dtype).view(rows, *leaf.shape[1:]))
            place += rows * widths[n]
    order = torch.tensor(move.order(), dtype=torch.long, device=device)
    return {n: _like(leaf, torch.cat(pieces[n]).index_select(0, order)) for n, leaf in leaves.items()}


def _like(leaf: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return rows whose dimensions lie in memory in the order of a leaf's."""
    if leaf.is_contiguous():
        return rows
    order = sorted(range(leaf.dim()), key=leaf.stride, reverse=True)
    return rows.permute(order).contiguous().permute([order.index(dim) for dim in range(leaf.dim())])
