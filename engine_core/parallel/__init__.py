"""Several processes as one run: torchrun's process group, DistributedDataParallel and FSDP2, as torch has them."""

from __future__ import annotations

from .checks import check_spread
from .failures import ends_with, record
from .group import join, packed, unpacked
from .rows import bounds, placeholder_of
from .settings import DDP, FSDP, spread_of
from .sharding import as_in, gathered, in_slices, is_sharded, kept_as_in, mark_of, mark_of_tensors, write_gathered
from .wrapping import Wrapping, spread_model, written

__all__ = [
    "DDP",
    "FSDP",
    "Wrapping",
    "as_in",
    "bounds",
    "check_spread",
    "ends_with",
    "gathered",
    "in_slices",
    "is_sharded",
    "join",
    "kept_as_in",
    "mark_of",
    "mark_of_tensors",
    "packed",
    "placeholder_of",
    "record",
    "spread_model",
    "spread_of",
    "unpacked",
    "write_gathered",
    "written",
]
