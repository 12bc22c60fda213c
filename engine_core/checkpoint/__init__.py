"""Checkpoints: tensors and JSON in a folder, written atomically and verified when read, by one process or several."""

from __future__ import annotations

from .reading import MODEL, Checkpoint, attempt_of, clock_of, open_content, read_content, read_manifest
from .store import BEST, RUN_CHECKPOINTS, Store, has_checkpoint, read_resolved, resolve
from .tensor_file import StoredTensor, Tensors, TensorSlice, in_file_order, load, save, slice_rows
from .tree import check_tensor, check_weight, flatten, restore
from .weights import check_which, export_weights, match_names, read_about, read_weights, with_average, write_weights
from .writing import BackgroundWriter, cut_content, write_content

__all__ = [
    "BEST",
    "MODEL",
    "RUN_CHECKPOINTS",
    "BackgroundWriter",
    "Checkpoint",
    "Store",
    "StoredTensor",
    "TensorSlice",
    "Tensors",
    "attempt_of",
    "check_tensor",
    "check_weight",
    "check_which",
    "clock_of",
    "cut_content",
    "export_weights",
    "flatten",
    "has_checkpoint",
    "in_file_order",
    "load",
    "match_names",
    "open_content",
    "read_about",
    "read_content",
    "read_manifest",
    "read_resolved",
    "read_weights",
    "resolve",
    "restore",
    "save",
    "slice_rows",
    "with_average",
    "write_content",
    "write_weights",
]
