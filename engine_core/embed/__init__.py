"""The seam between an engine and a training loop: one method for each moment of the loop. Knows no loop."""

from .adapter import check_batches, check_names, make_loop
from .covers import cover
from .loop import EmbeddedLoop
from .saving import algorithms_of, check_saved, read_part, read_state, state_of, states_of, write_part, write_state
from .status import Phase, RunStatus
from .step import backward_with_first_graph
from .view import batch_view
from .written import WrittenStep

__all__ = [
    "EmbeddedLoop",
    "Phase",
    "RunStatus",
    "WrittenStep",
    "algorithms_of",
    "backward_with_first_graph",
    "batch_view",
    "check_batches",
    "check_names",
    "check_saved",
    "cover",
    "make_loop",
    "read_part",
    "read_state",
    "state_of",
    "states_of",
    "write_part",
    "write_state",
]
