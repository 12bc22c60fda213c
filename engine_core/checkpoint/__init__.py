"""Checkpoints: tensors and JSON in a folder, written atomically and fully verified when read."""

from __future__ import annotations

from .files import Content, Snapshot, attempt_of, export_weights, read_content, read_manifest, write_content
from .store import RUN_CHECKPOINTS, Store, has_checkpoint, read_resolved, resolve
from .tree import Tensors, check_tensor, flatten, restore
from .writer import BackgroundWriter

__all__ = [
    "RUN_CHECKPOINTS",
    "BackgroundWriter",
    "Content",
    "Snapshot",
    "Store",
    "Tensors",
    "attempt_of",
    "check_tensor",
    "export_weights",
    "flatten",
    "has_checkpoint",
    "read_content",
    "read_manifest",
    "read_resolved",
    "resolve",
    "restore",
    "write_content",
]
