"""Several processes as one run: torchrun's process group, DistributedDataParallel and FSDP2, as torch has them."""

from __future__ import annotations

from .failures import ends_with, record
from .group import join, on_cpu
from .rows import bounds, placeholder_of
from .settings import DDP, FSDP, Parallel, check_spread, spread_of
from .sharding import (
    gathered,
    in_slices,
    is_sharded,
    mark_of,
    mark_of_tensors,
    shard_like,
    shard_state_like,
    write_gathered,
)
from .wrapping import Wrapping, is_statistic, shared_buffers, spread_model, written

__all__ = [
    "DDP",
    "FSDP",
    "Parallel",
    "Wrapping",
    "bounds",
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
