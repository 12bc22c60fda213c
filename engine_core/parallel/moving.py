"""Rows that change ranks: what is sent from where to where, and what a batch is made of afterwards."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist

from ..batch import Batches
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

    def __init__(self, counts: Sequence[int], index: torch.Tensor, ranks: Ranks) -> None:
        self._index = index.cpu()
        ends = torch.tensor([*accumulate(counts)])
        self._start = sum(counts[: ranks.rank])
        ends_of_parts = torch.tensor([bounds(len(index), ranks, rank)[1] for rank in range(ranks.size)])
        self._owners = torch.searchsorted(ends, self._index, right=True)
        self._receivers = torch.searchsorted(ends_of_parts, torch.arange(len(index)), right=True)
        self._is_mine, self._is_for_me = self._owners == ranks.rank, self._receivers == ranks.rank

    @property
    def is_needed(self) -> bool:
        """Does any row change ranks?"""
        return not torch.equal(self._owners, self._receivers)

    def rows_for(self, rank: int) -> torch.Tensor:
        """Return which of this rank's rows another one gets, or those that it keeps."""
        return self._index[self._is_mine & (self._receivers == rank)] - self._start

    def staying(self) -> torch.Tensor:
        """Return which of this rank's rows are dealt, to whichever rank."""
        return self._index[self._is_mine] - self._start

    def number_from(self, rank: int) -> int:
        """Return how many rows this rank gets from another one."""
        return int((self._is_for_me & (self._owners == rank)).sum())

    def order(self) -> torch.Tensor:
        """Return, for rows that lie in the order of the ranks that gave them, the order of the index."""
        return self._owners[self._is_for_me].argsort(stable=True).argsort()


def signature_of(batch: Any, batches: Batches) -> int:
    """Return a number that is equal on two ranks if the rows of their batches can be put together.

    It is `CAN_NOT_MOVE` for what can't be sent.
    """
    if batches.count is not None or batches.take is not None:
        return CAN_NOT_MOVE
    described = list[Any]()
    for leaf in _leaves(batch, batches):
        if isinstance(leaf, torch.Tensor):
            if leaf.is_quantized:
                return CAN_NOT_MOVE
            described.append((leaf.dtype, leaf.device.type, tuple(leaf.shape[1:])))
            continue
        try:
            flatten(leaf, "batch", {})
        except CheckpointError:
            return CAN_NOT_MOVE
        described.append(type(leaf))
    return zlib.crc32(repr(described).encode())


def moved(batch: Any, move: Move, ranks: Ranks, call: Callable[[Callable[[], Any]], None]) -> Any:
    """Return this rank's part of the rows that `move` deals, in a batch like the one that it has.

    Args:
        call: runs a collective.
    """
    leaves = _leaves(batch, ranks.batches)
    got: dict[int, Any] = {}
    for device in dict.fromkeys(leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)):
        there = {n: t for n, t in enumerate(leaves) if isinstance(t, torch.Tensor) and t.device == device}
        got.update(_moved_tensors(there, move, ranks, call))
    others = {str(n): leaf for n, leaf in enumerate(leaves) if n not in got}
    if others:
        offers = {
            n: [[leaf[row] for row in move.rows_for(rank).tolist()] for rank in range(ranks.size)]
            for n, leaf in others.items()
        }
        given = ranks.each(offers)
        for n, leaf in others.items():
            rows = [row for offer in given for row in offer[n][ranks.rank]]
            got[int(n)] = type(leaf)(rows[place] for place in move.order().tolist())
    numbered = iter(range(len(leaves)))

    def in_place(_: Any, dim: int) -> Any:
        leaf = got[next(numbered)]
        return leaf.movedim(0, dim) if dim else leaf

    return ranks.batches.map_rows(batch, in_place)


def _leaves(batch: Any, batches: Batches) -> list[Any]:
    """Return what has rows in a batch, in the order in which `map_rows` meets it, with the rows in dimension 0."""
    leaves: list[Any] = []
    batches.map_rows(batch, lambda leaf, dim: leaves.append(leaf.movedim(dim, 0) if dim else leaf))
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
        index = move.rows_for(rank).to(device)
        packed += [leaf.detach().index_select(0, index).flatten().view(torch.uint8) for leaf in leaves.values()]
        sent[rank] = len(index) * sum(widths.values())
        received[rank] = move.number_from(rank) * sum(widths.values())
    buffer = torch.empty(sum(received), dtype=torch.uint8, device=device)
    call(lambda: dist.all_to_all_single(buffer, torch.cat(packed), received, sent))
    own, numbers = move.rows_for(ranks.rank).to(device), [move.number_from(rank) for rank in range(ranks.size)]
    dealt = {n: leaf.new_empty((sum(numbers), *leaf.shape[1:])) for n, leaf in leaves.items()}
    place = row = 0
    for rank, rows in enumerate(numbers):
        for n, leaf in leaves.items():
            to = dealt[n][row : row + rows]
            if rank == ranks.rank:
                torch.index_select(leaf.detach(), 0, own, out=to)
                continue
            piece = buffer[place : place + rows * widths[n]].clone()  # a view of other values needs a start of its own
            to.copy_(piece.view(leaf.dtype).view_as(to))
            place += rows * widths[n]
        row += rows
    order = move.order()
    if not torch.equal(order, torch.arange(len(order))):  # an index that ascends needs no second copy
        dealt = {n: rows.index_select(0, order.to(device)) for n, rows in dealt.items()}
    return {n: _like(leaf, dealt[n]) for n, leaf in leaves.items()}


def _like(leaf: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return rows whose dimensions lie in memory in the order of a leaf's."""
    if leaf.is_contiguous():
        return rows
    order = sorted(range(leaf.dim()), key=leaf.stride, reverse=True)
    return rows.permute(order).contiguous().permute([order.index(dim) for dim in range(leaf.dim())])
