"""The training loop, evaluation, and the Trainer that wires the parts. Names are imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arguments import check_seed, new_name
    from .data import why_inexact
    from .precision import Precision
    from .resume import clock_in, versions_of
    from .trainer import Trainer

__all__ = [
    "Precision",
    "Trainer",
    "check_seed",
    "clock_in",
    "new_name",
    "versions_of",
    "why_inexact",
]

_HOME_OF = {
    "Precision": "precision",
    "Trainer": "trainer",
    "check_seed": "arguments",
    "clock_in": "resume",
    "new_name": "arguments",
    "versions_of": "resume",
    "why_inexact": "data",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for: callbacks take some of these and are listed without torch."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value
