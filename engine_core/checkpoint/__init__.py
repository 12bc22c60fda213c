"""Checkpoints: tensors and JSON in a folder, written atomically and verified when read, by one process or several."""

from __future__ import annotations

from .files import MODEL, Content, Share, Snapshot, attempt_of, read_manifest, write_content
from .parts import Writers, cut_content, write_share
from .pieces import Piece, cut
from .reading import Opened, open_content, read_content
from .store import BEST, RUN_CHECKPOINTS, Store, has_checkpoint, read_resolved, resolve
from .tensor_file import Stored, in_file_order, load, save
from .tree import Tensors, check_tensor, check_weight, flatten, restore
from .weights import (
    check_which,
    clock_of,
    export_weights,
    match_names,
    read_about,
    read_weights,
    with_average,
    write_weights,
)
from .writer import BackgroundWriter

__all__ = [
    "BEST",
    "MODEL",
    "RUN_CHECKPOINTS",
    "BackgroundWriter",
    "Content",
    "Opened",
    "Piece",
    "Share",
    "Snapshot",
    "Store",
    "Stored",
    "Tensors",
    "Writers",
    "attempt_of",
    "check_tensor",
    "check_weight",
    "check_which",
    "clock_of",
    "cut",
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
    "with_average",
    "write_content",
    "write_share",
    "write_weights",
]
