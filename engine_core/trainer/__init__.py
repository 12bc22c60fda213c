"""The training loop, evaluation, and the Trainer that wires the parts."""

from .arguments import check_seed, new_name
from .data import why_inexact
from .precision import Precision
from .resume import clock_in, versions_of
from .trainer import Trainer

__all__ = ["Precision", "Trainer", "check_seed", "clock_in", "new_name", "versions_of", "why_inexact"]
