"""The seam between an engine and a training loop: one method for each moment of the loop. Knows no loop."""

from ..moved import LOGITS, moved
from .adapter import (
    Accumulated,
    Patched,
    check_batches,
    check_names,
    factor_of,
    make_loop,
    patched,
    scale_gradients,
)
from .evaluation import keep_modules, without_trace
from .loop import (
    Loop,
    algorithms_of,
    check_saved,
    load_part,
    prepare_to_load,
    put_back,
    put_states_back,
    read_part,
    read_state,
    what_is_missing,
    write_part,
    write_state,
)
from .status import BegunEvaluation, Phase, RunStatus
from .step import backward_with_first_graph

__all__ = [
    "Accumulated",
    "BegunEvaluation",
    "Loop",
    "Patched",
    "Phase",
    "RunStatus",
    "algorithms_of",
    "backward_with_first_graph",
    "check_batches",
    "check_names",
    "check_saved",
    "factor_of",
    "keep_modules",
    "load_part",
    "make_loop",
    "patched",
    "prepare_to_load",
    "put_back",
    "put_states_back",
    "read_part",
    "read_state",
    "scale_gradients",
    "what_is_missing",
    "without_trace",
    "write_part",
    "write_state",
]

__getattr__ = moved(__name__, "LogitsLoss", extra=LOGITS)
