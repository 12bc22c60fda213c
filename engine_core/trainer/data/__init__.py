"""The train loader: its position, its order, and what to do when it fails."""

from __future__ import annotations

from .dealt import deal
from .failures import blame_what_was_loaded, lose_no_batch
from .feed import Feed, enter_loader
from .loaders import is_of_rank, own_generators, why_inexact
from .of_rank import compare_extents, differing

__all__ = [
    "Feed",
    "blame_what_was_loaded",
    "compare_extents",
    "deal",
    "differing",
    "enter_loader",
    "is_of_rank",
    "lose_no_batch",
    "own_generators",
    "why_inexact",
]
