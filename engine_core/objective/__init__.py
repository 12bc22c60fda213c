"""What a loss counts: forward, loss and count in one object, and the law that is measured. Imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .law import AT, Law, couples_rows, tolerance_of
    from .loss import Loss, as_nothing
    from .meter import LossMeter
    from .model_loss import ModelLoss
    from .objective import Objective, check_loss_fn, check_objective, check_own_objective
    from .targets import check_seen, targets_taken

_HOMES = {
    "law": ("AT", "Law", "couples_rows", "tolerance_of"),
    "loss": ("Loss", "as_nothing"),
    "meter": ("LossMeter",),
    "model_loss": ("ModelLoss",),
    "objective": ("Objective", "check_loss_fn", "check_objective", "check_own_objective"),
    "targets": ("check_seen", "targets_taken"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AT",
    "Law",
    "Loss",
    "LossMeter",
    "ModelLoss",
    "Objective",
    "as_nothing",
    "check_loss_fn",
    "check_objective",
    "check_own_objective",
    "check_seen",
    "couples_rows",
    "targets_taken",
    "tolerance_of",
]


def __getattr__(name: str) -> Any:
    """Import a file of this folder, which needs torch, when one of its names is first asked for."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value
