"""Sharded tensors, torch's DTensors, as pieces of whole ones: what a rank saves, what it loads, what rank 0 gathers."""

from __future__ import annotations

import copy
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ..checkpoint import StoredTensor, TensorSlice, flatten, in_file_order
from ..ranks import Ranks


def is_sharded(value: object) -> bool:
    """Is this a tensor of which each rank has a part?"""
    return isinstance(value, torch.Tensor) and hasattr(value, "full_tensor")


def in_slices(value: Any, of_tensor: Callable[[Any], Any] | None = None) -> Any:
    """Return a tree of dicts, lists and tuples with this rank's piece of each sharded tensor.

    Args:
        of_tensor: what takes the place of a sharded tensor; default: its piece.
    """
    if is_sharded(value):
        return (of_tensor or _slice_of)(value)
    if isinstance(value, dict):
        changed = {key: in_slices(item, of_tensor) for key, item in value.items()}
        if all(changed[key] is item for key, item in value.items()):
            return value
        copied = copy.copy(value)
        copied.update(changed)
        return copied
    if type(value) in (list, tuple):
        items = [in_slices(item, of_tensor) for item in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)
    return value


def gathered(tensor: Any) -> torch.Tensor:
    """Return a whole tensor on the CPU; all ranks take part."""
    whole: torch.Tensor = tensor.full_tensor().cpu()
    return whole


def shard_like(value: Any, own: object) -> Any:
    """Return a value that was loaded as this rank holds its own: its part of a sharded tensor, and the rest whole.

    Args:
        value: a tensor, one that is still in files, or anything else.
    """
    if not is_sharded(own) or not isinstance(value, (torch.Tensor, StoredTensor)) or is_sharded(value):
        return value.read() if isinstance(value, StoredTensor) else value
    return _sharded_as(value, own)


def shard_state_like(values: Mapping[str, Any], own: torch.Tensor) -> dict[str, Any]:
    """Return what an optimizer keeps for a parameter: what has its shape, as it is sharded."""
    return {k: shard_like(v, own if getattr(v, "shape", None) == own.shape else None) for k, v in values.items()}


def write_gathered(
    ranks: Ranks, weights: Mapping[str, torch.Tensor], write: Callable[[Mapping[str, Any]], None]
) -> None:
    """Call `write` on rank 0 with whole weights, which are gathered one by one when it reads them."""
    readable = {name: _Gathered(value) if is_sharded(value) else value for name, value in weights.items()}
    try:
        if ranks.rank == 0:
            write(readable)
    finally:  # the others gather all of them, in the order of a file, also if rank 0 could not write
        for value in in_file_order(readable).values():
            if isinstance(value, _Gathered) and not value.was_read:
                value.read()


class _Gathered:
    """A sharded tensor that is whole while it is written."""

    def __init__(self, tensor: Any) -> None:
        self.shape, self.dtype, self.was_read = tuple(tensor.shape), tensor.dtype, False
        self._tensor = tensor

    def read(self) -> torch.Tensor:
        """Gather it."""
        self.was_read = True
        return gathered(self._tensor.detach())


def _slice_of(tensor: Any) -> TensorSlice:
    size, offset = _place_of(tensor)
    local = tensor.detach().to_local()
    return TensorSlice(local[tuple(slice(0, length) for length in size)], offset, tuple(tensor.shape))


def _place_of(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the size of this rank's part, and where it begins."""
    from torch.distributed.tensor._utils import (  # noqa: PLC0415  only sharded runs need it; torch has no public way
        compute_local_shape_and_global_offset,
    )

    size, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(size), tuple(offset)


def _sharded_as(value: Any, own: Any) -> Any:
    from torch.distributed.tensor import DTensor  # noqa: PLC0415  as above

    size, offset = _place_of(own)
    offset = offset if all(size) else (0,) * len(size)  # an empty part may begin behind the end
    if isinstance(value, StoredTensor):
        part = value.read(offset, size)
    else:
        part = value[tuple(slice(begin, begin + length) for begin, length in zip(offset, size, strict=True))].clone()
    part = part.to(own.device)
    return DTensor.from_local(
        part, own.device_mesh, own.placements, run_check=False, shape=own.shape, stride=own.stride()
    )


def mark_of(state: Any) -> int:
    """Return a number that differs if a state differs, as good as surely; sharded tensors don't count.

    Raises:
        CheckpointError: for what a checkpoint can't hold.
    """
    tensors: dict[str, Any] = {}
    mark = zlib.crc32(json.dumps(flatten(in_slices(state), "state", tensors)).encode())
    return mark_of_tensors((each for each in tensors.values() if not isinstance(each, TensorSlice)), mark)


def mark_of_tensors(tensors: Iterable[torch.Tensor], mark: int = 0) -> int:
    """Return a number that differs if tensors differ; what is sharded, or not strided, doesn't count."""
    for tensor in tensors:
        if is_sharded(tensor) or tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
            continue
        whole = tensor.detach().cpu().contiguous().reshape(-1)
        data: Any = whole.view(torch.uint8).numpy() if whole.numel() else b""
        mark = zlib.crc32(data, mark)
    return mark
