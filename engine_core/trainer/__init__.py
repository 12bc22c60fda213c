"""The training loop, evaluation, and the Trainer that wires the parts."""

from .arguments import new_name
from .evaluation import find_average
from .loaders import own_generators, why_inexact
from .manifest import versions_of
from .metrics import Measurement, as_numbers, check_metrics, check_values, load_state, state_of
from .optimizers import at_evaluation, by_name
from .requests import ending_together, is_between_batches
from .resuming import clock_in
from .saved import copy_weights
from .session import Precision, in_float32
from .trainer import Trainer, describe
from .weights import load_weights

__all__ = [
    "Measurement",
    "Precision",
    "Trainer",
    "as_numbers",
    "at_evaluation",
    "by_name",
    "check_metrics",
    "check_values",
    "clock_in",
    "copy_weights",
    "describe",
    "ending_together",
    "find_average",
    "in_float32",
    "is_between_batches",
    "load_state",
    "load_weights",
    "new_name",
    "own_generators",
    "state_of",
    "versions_of",
    "why_inexact",
]
