"""The pass that places Selective Backprop, and InfoBatch, before other algorithms."""

from __future__ import annotations

from collections.abc import Sequence

from engine_core import Algorithm, Event, algorithm_pass, passes

from .algorithm import SelectiveBackprop
from .info_batch import InfoBatch

__all__ = ["sort_selective_backprop_first"]


@algorithm_pass(
    name="sort_selective_backprop_first",
    description="prune a batch before anything else changes it",
    stage="placement",
    events=SelectiveBackprop.metadata.events,
)
def sort_selective_backprop_first(
    algorithms: Sequence[Algorithm],
    event: Event,  # noqa: ARG001  every pass gets it
) -> Sequence[Algorithm]:
    """Put SelectiveBackprop first: it scores rows as the loader gives them, and saves others the work on dropped rows.

    Later in the step it reads what is trained on, before others restore what they have changed, and so does InfoBatch.
    """
    return passes.sort_to_front(algorithms, (SelectiveBackprop, InfoBatch))
