"""Where the scores of a batch come from: a forward, tables by example, other nets, or the user's function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from engine_core.ranks import Ranks

from .contract import Scorer
from .forward import ByForward
from .function import ByFunction
from .proxy import ByProxy
from .reducible import ByReducible
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
    by_name: dict[str, Callable[[], Scorer]] = {
        "forward": lambda: ByForward(ranks, settings["reuse"]),
        "stale": lambda: Stale(ranks, index_key, settings["refresh"], device),
        "carried": lambda: Carried(ranks, index_key, settings["momentum"], device),
        "proxy": lambda: ByProxy(ranks, settings["proxy"], device),
        "rho": lambda: ByReducible(ranks, settings["irreducible"], index_key, device),
    }
    return by_name[scorer]()
