"""The ranks of a process group, over torch.distributed. Messages about the run go over the CPU."""

from __future__ import annotations

import atexit
import datetime as dt
import os
import signal
import sys
import time
import zlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..batch import map_batch
from ..errors import EngineError
from ..messages import warn
from ..ranks import Deal, Ranks
from ..signals import SignalGuard
from .failures import Failures, failures_of_group, leave_group, store_of_group
from .rows import CAN_NOT_MOVE, Move, placeholder_of, signature_of
from .settings import FSDP, Parallel, has_group

_FRAME = 32
"""Numbers in a message of `table`, the first of which is how many follow; longer ones take a multiple."""


def join(parallel: Parallel | None, device: torch.device | str) -> Ranks:
    """Return the ranks of this run: those of the process group, joined here unless this process is in one."""
    if parallel is None:
        return Ranks()
    is_users = has_group()
    if not is_users:
        uses_cuda = torch.cuda.is_available() and str(device).startswith(("auto", "cuda"))
        backend = "cpu:gloo,cuda:nccl" if uses_cuda else "gloo"
        _join(backend, dt.timedelta(seconds=parallel.timeout_s))
    if dist.get_world_size() == 1:
        return Ranks()
    failures = failures_of_group("its timeout" if is_users else str(parallel.timeout), leaves=not is_users)
    return GroupRanks(failures, parallel)


_stores: list[Any] = []
"""Those of the groups that this process has joined: after a failure that all ranks had alike, another may follow."""


def _join(backend: str, timeout: dt.timedelta) -> None:
    if not _stores:
        with SignalGuard(signal.SIG_DFL, signal.SIGTERM):  # it waits in C++, where Python's handlers can't run
            dist.init_process_group(backend, timeout=timeout)
        atexit.register(leave_group)
        if sys.version_info < (3, 11, 8) and hasattr(os, "register_at_fork"):
            os.register_at_fork(before=_let_threads_finish)
    else:
        # The keys of the group before are still there, and its addresses lead nowhere.
        torchs: Any = dist  # whose hints leave out the next name, which its docs have
        store = torchs.PrefixStore(f"engine-core/{len(_stores)}", _stores[0])
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group(backend, timeout=timeout, store=store, rank=rank, world_size=size)
    _stores.append(store_of_group())


def _let_threads_finish() -> None:
    """Wait until gloo's threads have freed the tensors of the last message, before this process forks.

    They enter Python for it. If a process forks at that moment, as a DataLoader with workers does, the child inherits
    a lock of theirs and waits for it forever: https://github.com/python/cpython/issues/112275.
    """
    time.sleep(0.005)
    sys._current_frames()  # noqa: SLF001  documented; it takes the same lock


class GroupRanks(Ranks):
    """The ranks of the default process group.

    Args:
        failures: raises what a collective's failure means.
        parallel: how the run is spread over them.
    """

    def __init__(self, failures: Failures, parallel: Parallel) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.is_sharded, self.is_local = isinstance(parallel, FSDP), parallel.data == "local"
        self.timeout_s = parallel.timeout_s
        self._failures, self._call = failures, failures.guard
        self._has_warned = False

    def gather(self, rows: torch.Tensor) -> tuple[torch.Tensor, slice]:
        """Return the rows (n, ...) of all ranks in the order of the global batch, and where this rank's are."""
        own, shape = rows.detach().contiguous(), rows.shape[1:]
        octets = own.view(len(own), shape.numel()).view(torch.uint8)
        table = self.table([len(own), zlib.crc32(repr((own.dtype, shape)).encode())])
        if len({kind for _, kind in table}) > 1:
            raise EngineError(
                f"the ranks gather rows that differ in more than their number; those of rank {self.rank} are "
                f"{own.dtype} of shape {('n', *shape)}"
            )
        counts = [int(count) for count, _ in table]
        # As bytes, since backends differ in the dtypes that they take.
        padded = octets.new_zeros((max(counts), octets.shape[1]))
        padded[: len(own)] = octets
        parts = [torch.empty_like(padded) for _ in counts]
        if padded.numel():
            self._call(lambda: dist.all_gather(parts, padded))
        found = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
        start = sum(counts[: self.rank])
        return found.flatten().view(own.dtype).view(sum(counts), *shape), slice(start, start + len(own))

    def table(self, numbers: Sequence[float]) -> list[list[float]]:
        """Return the numbers of each rank, as float64: counts are exact up to 2**53."""
        length = len(numbers)
        # Of one size, so that ranks which send different messages learn of it, and no backend ends the process.
        own = torch.zeros(-(-(length + 1) // _FRAME) * _FRAME, dtype=torch.float64)
        own[0] = length
        own[1 : length + 1] = torch.tensor(numbers, dtype=torch.float64)
        found = [torch.empty_like(own) for _ in range(self.size)]
        self._call(lambda: dist.all_gather(found, own))
        table: list[list[float]] = [row.tolist() for row in found]
        if any(row[0] != length for row in table):
            each = ", ".join(f"rank {rank} sent {int(row[0])} numbers" for rank, row in enumerate(table))
            raise EngineError(
                f"the ranks are at different messages ({each}): all of them call the same methods of state.ranks in "
                "the same order, and none behind `if state.rank == 0`; losses have the same parts on all ranks"
            )
        return [row[1 : length + 1] for row in table]

    def first(self, value: Any) -> Any:
        """Return rank 0's value."""
        values = [None if self.rank else on_cpu(value)]
        self._call(lambda: dist.broadcast_object_list(values, src=0))
        return values[0] if self.rank else value

    def each(self, value: Any) -> list[Any]:
        """Return the value of each rank, of the kinds that `first` takes."""
        values: list[Any] = [None] * self.size
        own = on_cpu(value)
        self._call(lambda: dist.all_gather_object(values, own))
        return values

    def is_lost(self) -> bool:
        """Return whether another rank is known to have ended."""
        return self._failures.are_known()

    def has_ended(self) -> bool:
        """Return whether an exception has ended this run."""
        return self._failures.has_ended

    def parts(self, batch: Any, rows: int, *, moves: bool = True) -> tuple[list[int], Deal]:
        """Return how many rows of the global batch each rank has, and a function that deals chosen ones anew."""
        batches = self.batches
        table = self.table([rows, signature_of(batch, batches) if moves else CAN_NOT_MOVE])
        counts, kinds = [int(count) for count, _ in table], {int(kind) for _, kind in table}
        can_move = len(kinds) == 1 and CAN_NOT_MOVE not in kinds

        def deal(index: torch.Tensor) -> tuple[Any, bool]:
            move = Move(counts, index, self)
            if can_move and move.is_needed:
                dealt, is_placeholder = move.run(batch, self, self._call), not move.number
            else:
                if moves and move.is_needed:
                    self._warn_of_staying()
                dealt, is_placeholder = batches.part(batch, move.given), not len(move.given)
            return (placeholder_of(batch, batches) if is_placeholder else dealt), is_placeholder

        return counts, deal

    def _warn_of_staying(self) -> None:
        if not self.rank and not self._has_warned:
            warn(
                "rows of the batch can't be sent from rank to rank, so each rank keeps its own, and their numbers may "
                "differ: that takes tensors of one dtype and shape on all ranks, and lists of plain values",
                UserWarning,
            )
        self._has_warned = True


def on_cpu(value: Any) -> Any:
    """Return what to send of a value: tensors by themselves, on the CPU, as each rank gets them."""

    def alone(leaf: Any) -> Any:
        return leaf.detach().cpu().clone() if isinstance(leaf, torch.Tensor) else leaf

    return map_batch(value, alone)
