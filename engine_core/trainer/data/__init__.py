"""The train loader: its position, its order, and what to do when it fails."""

from __future__ import annotations

from .dealt import check_dealable, deal
from .feed import BeforeBatch, Feed, begin_pass, blame_what_was_loaded, enter_loader, lose_no_batch, restart_pass
from .loaders import keeps_position, of_loader, own_generators, restart_workers, why_inexact

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
