"""The train loader: its position, its order, and what to do when it fails."""

from __future__ import annotations

from .dealt import check_dealable, deal
from .failures import BeforeBatch, blame_what_was_loaded, lose_no_batch
from .feed import Feed, begin_pass, enter_loader, restart_pass
from .index_order import restart_workers
from .loaders import keeps_position, of_loader, own_generators, why_inexact

__all__ = [
    "BeforeBatch",
    "Feed",
    "begin_pass",
    "blame_what_was_loaded",
    "check_dealable",
    "deal",
    "enter_loader",
    "keeps_position",
    "lose_no_batch",
    "of_loader",
    "own_generators",
    "restart_pass",
    "restart_workers",
    "why_inexact",
]
