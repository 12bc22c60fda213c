"""Checkpoints: tensors and JSON in a folder, written in one stroke and checked to the last bit when read."""

from __future__ import annotations

from .files import Content, Snapshot, export_weights, read_content, read_manifest, write_content
from .store import LATEST, Store, resolve
from .tree import flatten, restore

__all__ = [
    "LATEST",
    "Content",
    "Snapshot",
    "Store",
    "export_weights",
    "flatten",
    "read_content",
    "read_manifest",
    "resolve",
    "restore",
    "write_content",
]
