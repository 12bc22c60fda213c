"""Where the scores of a batch come from: a forward, tables by example, or the user's function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from engine_core.ranks import Ranks

from .contract import Scorer
from .forward import ByForward
from .function import ByFunction
from .tables import Carried, Stale

__all__ = ["Scorer", "make_scorer"]


def make_scorer(settings: Mapping[str, Any], device: torch.device, ranks: Ranks) -> Scorer:
    """Return a scorer that knows nothing yet.

    Args:
        settings: by the names of the constructor's arguments.
        device: where its tables live.
        ranks: whose rows are scored together.
    """
    scorer, index_key = settings["scorer"], settings["index_key"]
    if settings["selector"] == "uniform":
        return Scorer(ranks)
    if callable(scorer):
        return ByFunction(ranks, scorer)
    if scorer == "stale":
        return Stale(ranks, index_key, settings["refresh"], device)
    if scorer == "carried":
        return Carried(ranks, index_key, settings["momentum"], device)
    return ByForward(ranks, settings["reuse"])
