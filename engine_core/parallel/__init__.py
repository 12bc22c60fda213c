"""Several processes as one run: torchrun's process group, DistributedDataParallel and FSDP2, as torch has them."""

from __future__ import annotations

from .group import ends_with, join, on_cpu, record
from .rows import placeholder_of
from .settings import DDP, FSDP, KINDS, Parallel, check_spread, spread_of
from .wrapping import (
    Wrapping,
    gathered,
    in_slices,
    is_sharded,
    is_statistic,
    mark_of,
    mark_of_tensors,
    shard_like,
    shard_state_like,
    shared_buffers,
    spread_model,
    write_gathered,
    written,
)

__all__ = [
    "DDP",
    "FSDP",
    "KINDS",
    "Parallel",
    "Wrapping",
    "check_spread",
    "ends_with",
    "gathered",
    "in_slices",
    "is_sharded",
    "is_statistic",
    "join",
    "mark_of",
    "mark_of_tensors",
    "on_cpu",
    "placeholder_of",
    "record",
    "shard_like",
    "shard_state_like",
    "shared_buffers",
    "spread_model",
    "spread_of",
    "write_gathered",
    "written",
]
