"""Rows of a global batch: how they are dealt to the ranks, and what is sent where they change ranks."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist

from ..batch import Batches, map_batch
from ..ranks import Ranks

CAN_NOT_MOVE = -1


def bounds(rows: int, ranks: Ranks, rank: int | None = None) -> tuple[int, int]:
    """Return where a rank's part of the rows begins and ends, this one's by default; the first ranks have one more.

    Example:
        >>> bounds(5, Ranks())
        (0, 5)
    """
    each, more = divmod(rows, ranks.size)
    rank = ranks.rank if rank is None else rank
    start = rank * each + min(rank, more)
    return start, start + each + (rank < more)


def placeholder_of(batch: Any, batches: Batches) -> Any:
    """Return row 0 of a batch, for a rank without rows; numbers that are not finite become 0.

    Its loss counts 0 times. But a row that was dropped may hold NaN, and the gradient of 0 times NaN is NaN.
    """

    def finite(leaf: Any) -> Any:
        is_tensor = isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())
        return torch.nan_to_num(leaf, 0.0, 0.0, 0.0) if is_tensor else leaf

    return map_batch(batches.part(batch, slice(0, 1)), finite)


def signature_of(batch: Any, batches: Batches) -> int:
    """Return a number that is equal on two ranks if the rows of their batches can be put together.

    It is `CAN_NOT_MOVE` for what can't be sent.
    """
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

    Args:
        counts: how many rows each rank has, in the order of the global batch.
        index: of the rows that are dealt; rank r gets part r of them.

    Attributes:
        is_needed: does any row change ranks?
        given: which of this rank's rows are dealt, in the order of the ranks that get them.
        places: of the rows that this rank gets, among those that all ranks give, one rank after the other.
    """

    def __init__(self, counts: Sequence[int], index: torch.Tensor, ranks: Ranks) -> None:
        index, numbers = index.cpu(), range(ranks.size)
        owners = torch.searchsorted(torch.tensor([*accumulate(counts)]), index, right=True)
        ends = torch.tensor([bounds(len(index), ranks, rank)[1] for rank in numbers])
        receivers = torch.searchsorted(ends, torch.arange(len(index)), right=True)
        are_mine, are_for_me = owners == ranks.rank, receivers == ranks.rank
        self.is_needed = not torch.equal(owners, receivers)
        self.given = index[are_mine] - sum(counts[: ranks.rank])
        self.places = owners.argsort(stable=True).argsort()[are_for_me]
        self._sent = [int((receivers[are_mine] == rank).sum()) for rank in numbers]
        self._received = [int((owners[are_for_me] == rank).sum()) for rank in numbers]

    def run(self, batch: Any, ranks: Ranks, call: Callable[[Callable[[], Any]], None]) -> Any:
        """Return this rank's part of the rows that are dealt, in a batch like the one that it has.

        Args:
            call: runs a collective.
        """
        leaves, got = _leaves(batch, ranks.batches), dict[int, Any]()
        for device in dict.fromkeys(leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)):
            there = {n: t for n, t in enumerate(leaves) if isinstance(t, torch.Tensor) and t.device == device}
            got |= zip(there, self._exchange(list(there.values()), device, call), strict=True)
        if others := [n for n in range(len(leaves)) if n not in got]:
            of_ranks = ranks.each([[leaves[n][row] for row in self.given.tolist()] for n in others])
            for n, *parts in zip(others, *of_ranks, strict=True):
                rows = [row for part in parts for row in part]
                got[n] = type(leaves[n])(rows[place] for place in self.places.tolist())
        numbered = iter(range(len(leaves)))

        def in_place(_: Any, dim: int) -> Any:
            leaf = got[next(numbered)]
            return leaf.movedim(0, dim) if dim else leaf

        return ranks.batches.map_rows(batch, in_place)

    def _exchange(
        self, leaves: list[torch.Tensor], device: torch.device, call: Callable[[Callable[[], Any]], None]
    ) -> list[torch.Tensor]:
        """Exchange the rows of tensors on one device in one message: as bytes, side by side."""
        given = self.given.to(device)
        octets = [
            leaf.detach().index_select(0, given).reshape(len(given), leaf.shape[1:].numel()).view(torch.uint8)
            for leaf in leaves
        ]
        sent = torch.cat(octets, dim=1)
        got = sent.new_empty((sum(self._received), sent.shape[1]))
        call(lambda: dist.all_to_all_single(got, sent, self._received, self._sent))
        order = self.places.argsort().argsort().to(device)
        pieces = torch.split(got, [part.shape[1] for part in octets], dim=1)
        # What is selected is a copy: a view of bytes as other values has to start at a multiple of their size.
        return [_like(leaf, piece.index_select(0, order)) for leaf, piece in zip(leaves, pieces, strict=True)]


def _leaves(batch: Any, batches: Batches) -> list[Any]:
    """Return what has rows in a batch, in the order in which `map_rows` meets it, with the rows in dimension 0."""
    leaves: list[Any] = []
    batches.map_rows(batch, lambda leaf, dim: leaves.append(leaf.movedim(dim, 0) if dim else leaf))
    return leaves


def _like(leaf: torch.Tensor, octets: torch.Tensor) -> torch.Tensor:
    """Return rows from their bytes (n, ...), with dimensions that lie in memory in the order of a leaf's."""
    rows = octets.flatten().view(leaf.dtype).view(len(octets), *leaf.shape[1:])
    if leaf.is_contiguous():
        return rows
    order = sorted(range(leaf.dim()), key=leaf.stride, reverse=True)
    return rows.permute(order).contiguous().permute([order.index(dim) for dim in range(leaf.dim())])
