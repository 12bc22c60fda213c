"""The seam between an engine and a training loop: one method for each moment of the loop. Knows no loop."""

from .accumulated import Accumulated, factor_of, scale_gradients
from .adapter import Patched, check_batches, check_names, make_loop, patched
from .logits import LogitsLoss, target_keys
from .loop import EmbeddedLoop
from .saving import algorithms_of, check_saved, read_part, read_state, state_of, states_of, write_part, write_state
from .status import BegunEvaluation, Phase, RunStatus
from .step import backward_with_first_graph

__all__ = [
    "Accumulated",
    "BegunEvaluation",
    "EmbeddedLoop",
    "LogitsLoss",
    "Patched",
    "Phase",
    "RunStatus",
    "algorithms_of",
    "backward_with_first_graph",
    "check_batches",
    "check_names",
    "check_saved",
    "factor_of",
    "make_loop",
    "patched",
    "read_part",
    "read_state",
    "scale_gradients",
    "state_of",
    "states_of",
    "target_keys",
    "write_part",
    "write_state",
]
