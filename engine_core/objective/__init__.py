"""What a loss counts: forward, loss and count in one object, and the law that is measured."""

from .law import AT, Law, couples_rows, tolerance_of
from .loss import Loss, LossMeter, as_nothing
from .objective import ModelLoss, Objective, call_model, check_loss_fn, check_objective, check_own_objective
from .precision import REDUCED, autocast_of
from .rows import SharedRowLosses, row_losses
from .targets import check_seen, targets_taken

__all__ = [
    "AT",
    "REDUCED",
    "Law",
    "Loss",
    "LossMeter",
    "ModelLoss",
    "Objective",
    "SharedRowLosses",
    "as_nothing",
    "autocast_of",
    "call_model",
    "check_loss_fn",
    "check_objective",
    "check_own_objective",
    "check_seen",
    "couples_rows",
    "row_losses",
    "targets_taken",
    "tolerance_of",
]
