"""Rows of a global batch: how they are dealt to the ranks, and what is sent where they change ranks."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist

from ..batch import Batches, map_batch
from ..ranks import Ranks, share

CAN_NOT_MOVE = -1


def placeholder_of(batch: Any, batches: Batches) -> Any:
    """Return row 0 of a batch, for a rank without rows; 0 for numbers that are not finite: 0 times NaN is NaN."""

    def finite(leaf: Any) -> Any:
        is_tensor = isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())
        return torch.nan_to_num(leaf, 0.0, 0.0, 0.0) if is_tensor else leaf

    return map_batch(batches.part(batch, slice(0, 1)), finite)


def signature_of(batch: Any, batches: Batches) -> int:
    """Return a number that is equal on ranks whose rows can be put together; `CAN_NOT_MOVE` for what can't be sent."""
    if batches.count is not None or batches.take is not None:
        return CAN_NOT_MOVE
    described = list[Any]()
    for leaf in _leaves(batch, batches):
        if isinstance(leaf, torch.Tensor) and not leaf.is_quantized:
            described.append((leaf.dtype, leaf.device.type, tuple(leaf.shape[1:])))
        elif type(leaf) in (list, tuple):
            described.append(type(leaf))
        else:
            return CAN_NOT_MOVE
    return zlib.crc32(repr(described).encode())


class Move:
    """How the rows at `index` of the global batch are dealt: from the ranks that have them, to those that get them.

    Attributes:
        is_needed: does any row change ranks?
        given: which of this rank's rows are dealt, in the order of the ranks that get them.
        number: of rows that this rank gets.
    """

    def __init__(self, counts: Sequence[int], index: torch.Tensor, ranks: Ranks) -> None:
        index, numbers = index.cpu(), range(ranks.size)
        owners = torch.searchsorted(torch.tensor([*accumulate(counts)]), index, right=True)
        ends = torch.tensor([share(len(index), rank, ranks.size)[1] for rank in numbers])
        receivers = torch.searchsorted(ends, torch.arange(len(index)), right=True)
        are_mine, are_for_me, goes = owners == ranks.rank, receivers == ranks.rank, owners != receivers
        start = sum(counts[: ranks.rank])
        self.is_needed = bool(goes.any())
        self.given = index[are_mine] - start
        self.number = int(are_for_me.sum())
        # Rows come from one rank after the other: in the order of the index, as most do, or to be put into it.
        by_rank = owners[are_for_me]
        is_in_order = bool((by_rank[1:] >= by_rank[:-1]).all())
        self._order = None if is_in_order else by_rank.argsort(stable=True).argsort()
        self._owners, self._are_for_me = owners, are_for_me
        self._leaving, self._staying = index[are_mine & goes] - start, index[are_mine & ~goes] - start
        self._sent = [int((receivers[are_mine & goes] == rank).sum()) for rank in numbers]
        self._received = [int((owners[are_for_me & goes] == rank).sum()) for rank in numbers]
        self._before = sum(self._received[: ranks.rank])

    def run(self, batch: Any, ranks: Ranks, call: Callable[[Callable[[], Any]], None]) -> Any:
        """Return this rank's part of the rows that are dealt, in a batch like its own; `call` runs a collective."""
        leaves = _leaves(batch, ranks.batches)
        got: dict[int, Any] = {
            n: self._exchange(leaf, call) for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)
        }
        if others := [n for n in range(len(leaves)) if n not in got]:
            of_ranks = ranks.each([[leaves[n][row] for row in self.given.tolist()] for n in others])
            places = self._owners.argsort(stable=True).argsort()[self._are_for_me].tolist()
            for n, *parts in zip(others, *of_ranks, strict=True):
                rows = [row for part in parts for row in part]
                got[n] = type(leaves[n])(rows[place] for place in places)
        numbered = iter(range(len(leaves)))

        def in_place(_: Any, dim: int) -> Any:
            leaf = got[next(numbered)]
            return leaf.movedim(0, dim) if dim else leaf

        return ranks.batches.map_rows(batch, in_place)

    def _exchange(self, leaf: torch.Tensor, call: Callable[[Callable[[], Any]], None]) -> torch.Tensor:
        """Send the rows of a tensor that change ranks, as bytes, and return those that this rank has then."""
        own, width = leaf.detach(), leaf.shape[1:].numel()
        sent = own.index_select(0, self._leaving.to(leaf.device)).reshape(len(self._leaving), width).view(torch.uint8)
        got = sent.new_empty((sum(self._received), sent.shape[1]))
        call(lambda: dist.all_to_all_single(got, sent, self._received, self._sent))
        others = got.flatten().view(leaf.dtype).view(len(got), *leaf.shape[1:])
        rows, after = own.new_empty((self.number, *leaf.shape[1:])), self._before + len(self._staying)
        torch.index_select(own, 0, self._staying.to(leaf.device), out=rows[self._before : after])
        rows[: self._before], rows[after:] = others[: self._before], others[self._before :]
        rows = rows if self._order is None else rows.index_select(0, self._order.to(leaf.device))
        if leaf.is_contiguous():
            return rows
        order = sorted(range(leaf.dim()), key=leaf.stride, reverse=True)  # of dimensions in memory
        return rows.permute(order).contiguous().permute([order.index(dim) for dim in range(leaf.dim())])


def _leaves(batch: Any, batches: Batches) -> list[Any]:
    """Return what has rows in a batch, in the order in which `map_rows` meets it, with the rows in dimension 0."""
    leaves: list[Any] = []
    batches.map_rows(batch, lambda leaf, dim: leaves.append(leaf.movedim(dim, 0) if dim else leaf))
    return leaves
