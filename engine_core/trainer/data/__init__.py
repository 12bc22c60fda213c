"""The train loader: its position, its order, and what to do when it fails."""

from __future__ import annotations

from .dealt import deal
from .failures import BeforeBatch, blame_what_was_loaded, lose_no_batch
from .feed import Feed, begin_pass, enter_loader, of_loader, restart_pass
from .index_order import restart_workers
from .loaders import is_of_rank, keeps_position, own_generators, why_inexact
from .of_rank import compare_extents, differing

__all__ = [
    "BeforeBatch",
    "Feed",
    "begin_pass",
    "blame_what_was_loaded",
    "compare_extents",
    "deal",
    "differing",
    "enter_loader",
    "is_of_rank",
    "keeps_position",
    "lose_no_batch",
    "of_loader",
    "own_generators",
    "restart_pass",
    "restart_workers",
    "why_inexact",
]
