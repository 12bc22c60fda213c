"""The seam between an engine and a training loop: one method for each moment of the loop. Knows no loop."""

from .adapter import check_batches, check_names, make_loop
from .covers import cover
from .loop import EmbeddedLoop
from .objective import (
    backward_with_first_graph,
    check_loss_fn,
    check_objective,
    compute_loss,
    compute_outputs,
    compute_predictions,
    counts_by_rows,
    divisor_of,
    reduce_loss,
    weight_of,
)
from .saving import algorithms_of, check_saved, read_part, read_state, state_of, states_of, write_part, write_state
from .status import Phase, RunStatus
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
    "check_loss_fn",
    "check_names",
    "check_objective",
    "check_saved",
    "compute_loss",
    "compute_outputs",
    "compute_predictions",
    "counts_by_rows",
    "cover",
    "divisor_of",
    "make_loop",
    "read_part",
    "read_state",
    "reduce_loss",
    "state_of",
    "states_of",
    "weight_of",
    "write_part",
    "write_state",
]
