"""The ranks of a process group, over torch.distributed. Messages about the run go over the CPU."""

from __future__ import annotations

import atexit
import datetime as dt
import json
import os
import signal
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist

from ..checkpoint import Tensors, flatten, restore
from ..errors import EngineError
from ..messages import warn
from ..ranks import Deal, Ranks
from ..signals import SignalGuard
from .failures import Failures, failures_of_group, leave_group, store_of_group
from .moving import CAN_NOT_MOVE, Move, moved, signature_of
from .rows import bounds, placeholder_of
from .settings import FSDP, Parallel, has_group, timeout_s

_FRAME = 32
"""Numbers in a message of `table`, the first of which is how many follow; longer ones take a multiple."""
_NUMBERS, _ROOM, _MOST_ROOM = 16, 976, 1 << 15
"""Bytes in the first message of `first` and `gather`, of its two numbers and the rest; what is longer needs another."""


def join(parallel: Parallel | None, device: torch.device | str) -> Ranks:
    """Return the ranks of this run: those of the process group, joined here unless this process is in one."""
    if parallel is None:
        return Ranks()
    is_users = has_group()
    if not is_users:
        uses_cuda = torch.cuda.is_available() and str(device).startswith(("auto", "cuda"))
        backend = "cpu:gloo,cuda:nccl" if uses_cuda else "gloo"
        _join(backend, dt.timedelta(seconds=timeout_s(parallel)))
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
        self.timeout_s = timeout_s(parallel)
        self._failures = failures
        self._room_to_gather = _ROOM
        self._has_warned = False

    def gather(self, rows: torch.Tensor) -> tuple[torch.Tensor, slice]:
        """Return the rows (n, ...) of all ranks in the order of the global batch, and where this rank's are."""
        own = rows.detach().contiguous()
        size, width = own.shape[0], own.element_size() * own.shape[1:].numel()
        room = self._room_to_gather
        kind = zlib.crc32(repr((own.dtype, own.shape[1:])).encode())
        head = _head([size, kind], own.flatten().view(torch.uint8) if size * width <= room else None, room)
        heads = [torch.empty_like(head) for _ in range(self.size)]
        self._call(lambda: dist.all_gather(heads, head))
        numbers = [head[:_NUMBERS].view(torch.int64).tolist() for head in heads]
        counts = [count for count, _ in numbers]
        if any(of_rank != kind for _, of_rank in numbers):
            raise EngineError(
                f"the ranks gather rows that differ in more than their number; those of rank {self.rank} are "
                f"{own.dtype} of shape {('n', *own.shape[1:])}"
            )
        # All ranks know it, and the next rows, such as the scores of a batch, are often as many.
        self._room_to_gather = min(max(_ROOM, max(counts) * width), _MOST_ROOM)
        if max(counts) * width <= room:
            cut = [head[_NUMBERS : _NUMBERS + n * width].clone() for head, n in zip(heads, counts, strict=True)]
            found = torch.cat(cut).view(own.dtype).view(sum(counts), *own.shape[1:]).to(own.device)
        else:
            found = torch.cat(self._gathered(own, counts))
        start = sum(counts[: self.rank])
        return found, slice(start, start + counts[self.rank])

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
        whole = packed(value) if self.rank == 0 else torch.empty(0, dtype=torch.uint8)
        head = _head([len(whole), 0], whole[:_ROOM], _ROOM)
        self._call(lambda: dist.broadcast(head, src=0))
        length = int(head[:8].view(torch.int64))
        if length <= _ROOM:
            return value if self.rank == 0 else unpacked(head[_NUMBERS : _NUMBERS + length])
        rest = whole[_ROOM:] if self.rank == 0 else torch.empty(length - _ROOM, dtype=torch.uint8)
        self._call(lambda: dist.broadcast(rest, src=0))
        return value if self.rank == 0 else unpacked(torch.cat([head[_NUMBERS:], rest]))

    def each(self, value: Any) -> list[Any]:
        """Return the value of each rank, of the kinds that `first` takes."""
        own = packed(value)
        counts = [int(count) for (count,) in self.table([len(own)])]
        return [unpacked(part) for part in self._gathered(own, counts)]

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
                dealt = moved(batch, move, self, self._call)
                start, stop = bounds(index.shape[0], self)
                is_placeholder = start == stop
            else:
                if moves and move.is_needed:
                    self._warn_of_staying()
                staying = move.staying()
                dealt, is_placeholder = batches.part(batch, staying), not len(staying)
            return (placeholder_of(batch, batches) if is_placeholder else dealt), is_placeholder

        return counts, deal

    def _gathered(self, rows: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
        """Return each rank's rows; as bytes, since backends differ in the dtypes that they take."""
        row = rows.new_zeros((1, *rows.shape[1:])).reshape(1, -1)
        octets = rows.contiguous().reshape(rows.shape[0], row.shape[1]).view(torch.uint8)
        padded = octets.new_zeros((max(counts), octets.shape[1]))
        padded[: rows.shape[0]] = octets
        parts = [torch.empty_like(padded) for _ in counts]
        if padded.numel():
            self._call(lambda: dist.all_gather(parts, padded))
        shape = rows.shape[1:]
        return [p[:n].contiguous().view(rows.dtype).reshape(n, *shape) for p, n in zip(parts, counts, strict=True)]

    def _warn_of_staying(self) -> None:
        if not self.rank and not self._has_warned:
            warn(
                "rows of the batch can't be sent from rank to rank, so each rank keeps its own, and their numbers may "
                "differ: that takes tensors of one dtype and shape on all ranks, and lists of plain values",
                UserWarning,
            )
        self._has_warned = True

    def _call(self, communicate: Callable[[], Any]) -> None:
        self._failures.guard(communicate)


def _head(numbers: list[int], octets: torch.Tensor | None, room: int) -> torch.Tensor:
    """Return a message that has the same length on all ranks: two numbers, and what there is room for."""
    head = torch.zeros(_NUMBERS + room, dtype=torch.uint8)
    head[:_NUMBERS] = torch.tensor(numbers).view(torch.uint8)
    if octets is not None:
        head[_NUMBERS : _NUMBERS + len(octets)] = octets
    return head


def packed(value: Any) -> torch.Tensor:
    """Return a value as bytes, a tensor (n,): JSON, and the tensors that it names."""
    tensors: Tensors = {}
    words = json.dumps(flatten(value, "value", tensors)).encode()
    named = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    whole = len(words).to_bytes(8, "little") + words + safetensors.torch.save(named)
    return torch.frombuffer(bytearray(whole), dtype=torch.uint8)


def unpacked(message: torch.Tensor) -> Any:
    """Return the value of which `packed` made a message."""
    whole = message.numpy().tobytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    return restore(json.loads(whole[8:end]), safetensors.torch.load(whole[end:]))
