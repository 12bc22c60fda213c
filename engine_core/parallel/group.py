"""The ranks of a process group, over torch.distributed. Messages about the run go over the CPU."""

from __future__ import annotations

import atexit
import datetime as dt
import json
from collections.abc import Callable, Sequence
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist

from ..checkpoint import Tensors, flatten, restore
from ..ranks import Ranks
from .failures import Failures
from .settings import FSDP, Parallel, has_group, timeout_s

_FIRST_PART = 4096
"""Bytes of the first message of `first`: what is longer needs a second one."""


def join(parallel: Parallel | None, device: torch.device | str) -> Ranks:
    """Return the ranks of this run: those of the process group, joined here unless this process is in one."""
    if parallel is None:
        return Ranks()
    if not has_group():
        uses_cuda = torch.cuda.is_available() and str(device).startswith(("auto", "cuda"))
        backend = "cpu:gloo,cuda:nccl" if uses_cuda else "gloo"
        dist.init_process_group(backend, timeout=dt.timedelta(seconds=timeout_s(parallel)))
        atexit.register(_leave)
    if dist.get_world_size() == 1:
        return Ranks()
    return GroupRanks(is_sharded=isinstance(parallel, FSDP))


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


class GroupRanks(Ranks):
    """The ranks of the default process group.

    Args:
        is_sharded: see `Ranks`.
    """

    def __init__(self, *, is_sharded: bool) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.is_sharded = is_sharded
        self.failures = Failures(self.rank, self.size)

    def gather(self, rows: torch.Tensor) -> tuple[torch.Tensor, slice]:
        """Return the rows (n, ...) of all ranks in the order of the global batch, and where this rank's are."""
        counts = [int(count) for (count,) in self.table([rows.shape[0]])]
        start = sum(counts[: self.rank])
        return torch.cat(self._gathered(rows.detach(), counts)), slice(start, start + counts[self.rank])

    def table(self, numbers: Sequence[float]) -> list[list[float]]:
        """Return the numbers of each rank, as float64: counts are exact up to 2**53."""
        own = torch.tensor(numbers, dtype=torch.float64)
        found = [torch.empty_like(own) for _ in range(self.size)]
        self._call(lambda: dist.all_gather(found, own))
        return [numbers.tolist() for numbers in found]

    def first(self, value: Any) -> Any:
        """Return rank 0's value."""
        whole = _packed(value) if self.rank == 0 else torch.empty(0, dtype=torch.uint8)
        head = torch.zeros(8 + _FIRST_PART, dtype=torch.uint8)
        head[:8] = torch.tensor([len(whole)]).view(torch.uint8)
        head[8 : 8 + len(whole)] = whole[:_FIRST_PART]
        self._call(lambda: dist.broadcast(head, src=0))
        length = int(head[:8].view(torch.int64))
        if length <= _FIRST_PART:
            return value if self.rank == 0 else _unpacked(head[8 : 8 + length])
        rest = whole[_FIRST_PART:] if self.rank == 0 else torch.empty(length - _FIRST_PART, dtype=torch.uint8)
        self._call(lambda: dist.broadcast(rest, src=0))
        return value if self.rank == 0 else _unpacked(torch.cat([head[8:], rest]))

    def each(self, value: Any) -> list[Any]:
        """Return the value of each rank, of the kinds that `first` takes."""
        own = _packed(value)
        counts = [int(count) for (count,) in self.table([len(own)])]
        return [_unpacked(part) for part in self._gathered(own, counts)]

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

    def _call(self, communicate: Callable[[], Any]) -> None:
        self.failures.guard(communicate)


def _packed(value: Any) -> torch.Tensor:
    """Return a value as bytes, a tensor (n,): JSON, and the tensors that it names."""
    tensors: Tensors = {}
    words = json.dumps(flatten(value, "value", tensors)).encode()
    named = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    whole = len(words).to_bytes(8, "little") + words + safetensors.torch.save(named)
    return torch.frombuffer(bytearray(whole), dtype=torch.uint8)


def _unpacked(packed: torch.Tensor) -> Any:
    whole = packed.numpy().tobytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    return restore(json.loads(whole[8:end]), safetensors.torch.load(whole[end:]))
