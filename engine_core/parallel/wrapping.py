"""The model, wrapped or sharded, and sharded tensors, in pieces and whole."""

from __future__ import annotations

import copy
import inspect
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..checkpoint import StoredTensor, TensorSlice, flatten, in_file_order
from ..errors import ArgumentError
from ..messages import warn
from ..ranks import Ranks
from .group import guard
from .settings import FSDP, Parallel


def is_sharded(value: object) -> bool:
    """Is this a tensor of which each rank has a part?"""
    return isinstance(value, torch.Tensor) and hasattr(value, "full_tensor")


def in_slices(value: Any, of_tensor: Callable[[Any], Any] | None = None) -> Any:
    """Return a tree of dicts, lists and tuples with this rank's piece, or `of_tensor`, of each sharded tensor."""
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
    """Return a loaded value, maybe still in files, as this rank holds its own: its part of a sharded tensor."""
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
    """Return a number that almost certainly differs if a state differs; sharded tensors don't count."""
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


_WRAPPER = nn.parallel.DistributedDataParallel
_KNOWN = inspect.signature(_WRAPPER).parameters
_SYNCS_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _KNOWN else "broadcast_buffers"
"""Its name from torch 2.13 on, and before."""
# Weights are rank 0's already: another copy of them in place would look like a change of them.
_AS_IT_IS = {_SYNCS_BUFFERS: False, **({"init_sync": False} if "init_sync" in _KNOWN else {})}
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_NORMS = (*_BATCH_NORMS, nn.SyncBatchNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_STATISTICS = ("running_mean", "running_var")  # a scripted BatchNorm, and many of other libraries, are none of these


class Wrapping:
    """The model of a run on one process; `called` is what the loop calls in training."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.called: Any = model

    def follow(self) -> None:
        """Make what is called anew if other parameters train now."""

    def rest(self) -> None:
        """Keep only this rank's part of the weights until the next forward."""

    def until_last(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return a context for a microbatch; gradients wait for the other ranks in the last one only."""
        return nullcontext()

    def mean_buffers(self) -> None:
        """Let running statistics be the mean over ranks, and other buffers rank 0's.

        After each step: a mean that is taken now and then rounds elsewhere in a run that pauses.
        """


class _InGroup(Wrapping):
    """The model of a rank in a process group."""

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        super().__init__(model)
        self._ranks = ranks
        self._seen_buffers: list[tuple[int, int | None]] = []

    @torch.no_grad()
    def mean_buffers(self) -> None:
        """Let running statistics be the mean over ranks, and other buffers rank 0's."""
        statistics, others = shared_buffers(self.model)
        if others and self._ranks.any(self._seen_buffers != _versions(others)):  # else large tables would be sent often
            _take_from_first(others)
            self._seen_buffers = _versions(others)
        if not statistics:
            return
        total = torch.cat([buffer.reshape(-1).double() for buffer in statistics])
        guard(lambda: dist.all_reduce(total))
        parts = torch.split(total / dist.get_world_size(), [buffer.numel() for buffer in statistics])
        for buffer, mean in zip(statistics, parts, strict=True):
            buffer.copy_(mean.view_as(buffer))


class Replicated(_InGroup):
    """The model on each rank, with gradients added up over the ranks."""

    def __init__(
        self, model: nn.Module, parallel: Parallel, ranks: Ranks, device: torch.device, *, finds_unused: bool
    ) -> None:
        super().__init__(model, ranks)
        own = {"device_ids": [device]} if device.type == "cuda" else {}
        self._args = {**_AS_IT_IS, "find_unused_parameters": finds_unused, **own, **parallel.args}
        self._trained: list[int] = []
        self._modules: list[nn.Module] = []
        self._parameters: list[nn.Parameter] = []
        self._seen: tuple[list[int], list[bool]] | None = None

    def follow(self) -> None:
        """Wrap the model anew if other parameters train now: a wrapper waits for those it was made for."""
        if self._look() == self._seen:
            return
        self._modules, self._parameters = list(self.model.modules()), list(self.model.parameters())
        self._seen = self._look()
        trained = [id(parameter) for parameter in self._parameters if parameter.requires_grad]
        if trained != self._trained:
            self._trained, self.called = trained, None  # the former one's hooks go first
            self.called = _WRAPPER(self.model, **self._args)

    def _look(self) -> tuple[list[int], list[bool]]:
        """Return what the model is made of, and what trains: each step looks, and a walk through the model is slow."""
        parts = (of for m in self._modules for of in (m._modules, m._parameters))  # noqa: SLF001  its methods are slow
        return [id(part) for of in parts for part in of.values()], [p.requires_grad for p in self._parameters]

    def until_last(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return DistributedDataParallel's `no_sync` for all microbatches but the last."""
        return nullcontext() if is_last else self.called.no_sync()


class Sharded(_InGroup):
    """A model of which each rank has a part; it is gathered block by block."""

    def __init__(self, model: Any, parallel: FSDP, ranks: Ranks, device: torch.device) -> None:
        super().__init__(model, ranks)
        from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415  only sharded runs need these
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method  # noqa: PLC0415

        self._parts = [*_blocks(model, parallel), model]
        if device.type == "cuda":
            torch.cuda.set_device(device)  # where torch puts the parts
        mesh = init_device_mesh(device.type, (ranks.size,))
        for module in self._parts:
            fully_shard(module, mesh=mesh, **parallel.args)
        if hasattr(model, "eval_forward"):
            register_fsdp_forward_method(model, "eval_forward")
        # A forward without a backward leaves weights whole, and the next one would take them as they were then.
        model.register_forward_pre_hook(lambda *_: self.rest(), prepend=True)

    def rest(self) -> None:
        """Free the whole weights that a forward without a backward has left."""
        for module in self._parts:
            module.reshard()

    def until_last(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Let gradients be reduced in the last microbatch only."""
        model: Any = self.model
        model.set_requires_gradient_sync(is_last)
        return nullcontext()


def spread_model(
    model: nn.Module, parallel: Parallel | None, ranks: Ranks, device: torch.device, *, finds_unused: bool
) -> Wrapping:
    """Give all ranks rank 0's weights and buffers, and wrap or shard the model."""
    if parallel is None or ranks.size == 1:
        return Wrapping(model)
    if (wrap := getattr(ranks, "wrap", None)) is not None:
        wrapping: Wrapping = wrap(model)
        return wrapping
    for tensor in [*model.parameters(), *model.buffers()]:
        _take_from_first([written(tensor.detach())])
    if ranks.rank == 0:
        _warn_of_batch_norm(model)
    if isinstance(parallel, FSDP):
        return Sharded(model, parallel, ranks, device)
    return Replicated(model, parallel, ranks, device, finds_unused=finds_unused)


def is_statistic(module: nn.Module, attribute: str) -> bool:
    """Does a normalization layer collect this buffer? Of all others, such as a queue, a mean makes no sense."""
    return isinstance(module, _NORMS) or attribute in _STATISTICS


def shared_buffers(model: nn.Module) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return which buffers of a model become the mean over ranks, and which rank 0's."""
    statistics, others, seen = list[torch.Tensor](), list[torch.Tensor](), set[int]()
    for module in model.modules():
        for attribute, buffer in module.named_buffers(recurse=False):
            if id(buffer) not in seen and buffer.numel():
                seen.add(id(buffer))
                (statistics if is_statistic(module, attribute) else others).append(written(buffer.detach()))
    return statistics, others


def _versions(tensors: list[torch.Tensor]) -> list[tuple[int, int | None]]:
    """Return what differs if these are other tensors, or any of them has changed."""
    return [(t.data_ptr(), None if t.is_inference() else t._version) for t in tensors]  # noqa: SLF001


def written(tensor: torch.Tensor) -> torch.Tensor:
    """Return what has to be written to change a tensor: of an expanded one, what it repeats."""
    for dim in reversed(range(tensor.dim())):
        if tensor.stride(dim) == 0 and tensor.shape[dim] > 1:
            tensor = tensor.select(dim, 0)
    return tensor


def _take_from_first(tensors: list[torch.Tensor]) -> None:
    """Give tensors rank 0's values; as bytes, since backends differ in the dtypes that they take."""
    if not tensors:
        return
    parts = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
    whole = parts[0] if len(parts) == 1 else torch.cat(parts)
    guard(lambda: dist.broadcast(whole, src=0))
    for tensor, part in zip(tensors, torch.split(whole, [len(part) for part in parts]), strict=True):
        if part.data_ptr() != tensor.data_ptr():
            tensor.copy_(part.clone().view(tensor.dtype).view_as(tensor))  # the clone is aligned


def _warn_of_batch_norm(model: nn.Module) -> None:
    """Warn if a layer's training statistics are those of a rank's rows."""
    local = [name for name, module in model.named_modules() if isinstance(module, _BATCH_NORMS)]
    if local:
        warn(
            f"BatchNorm ({local[0]!r}{' and others' if len(local) > 1 else ''}) takes its statistics in training from "
            "each rank's own rows; on CUDA torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) takes them from all",
            UserWarning,
        )


def _blocks(model: nn.Module, parallel: FSDP) -> list[nn.Module]:
    """Return the modules that are gathered one by one, innermost first."""
    modules = list(model.modules())
    for block in parallel.blocks:
        if not any(_is(module, block) for module in modules):
            name = block if isinstance(block, str) else block.__name__
            kinds = sorted({type(module).__name__ for module in modules})
            raise ArgumentError(f"FSDP: the model has no module of class {name!r}; it has {', '.join(kinds)}")
    found = [module for module in modules if module is not model and any(_is(module, b) for b in parallel.blocks)]
    return found[::-1]


def _is(module: nn.Module, block: type | str) -> bool:
    return type(module).__name__ == block if isinstance(block, str) else type(module) is block
