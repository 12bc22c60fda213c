"""Several processes as one run: torchrun's process group, DistributedDataParallel and FSDP2, as torch has them."""

from __future__ import annotations

from .failures import ends_with, record
from .group import join, on_cpu
from .rows import bounds, placeholder_of
from .settings import DDP, FSDP, Parallel, check_spread, spread_of
from .sharding import as_in, gathered, in_pieces, is_sharded, kept_as_in, mark_of, mark_of_tensors, write_gathered
from .wrapping import Wrapping, spread_model, written

__all__ = [
    "DDP",
    "FSDP",
    "Parallel",
    "Wrapping",
    "as_in",
    "bounds",
    "check_spread",
    "ends_with",
    "gathered",
    "in_pieces",
    "is_sharded",
    "join",
    "kept_as_in",
    "mark_of",
    "mark_of_tensors",
    "on_cpu",
    "placeholder_of",
    "record",
    "spread_model",
    "spread_of",
    "write_gathered",
    "written",
]
