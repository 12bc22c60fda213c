"""The pass that places SAM before other algorithms."""

from __future__ import annotations

from collections.abc import Sequence

from engine_core import Algorithm, Event, algorithm_pass, passes

from .sam import SAM

__all__ = ["sort_sam_first"]


@algorithm_pass(
    name="sort_sam_first",
    description="run SAM's second pass before others end the batch or edit its gradients",
    stage="placement",
    events=(Event.AFTER_TRAIN_BATCH,),
)
def sort_sam_first(
    algorithms: Sequence[Algorithm],
    event: Event,  # noqa: ARG001  every pass gets it
) -> Sequence[Algorithm]:
    """Put SAM first: its second pass needs what others undo there, and throws away the existing gradients."""
    return passes.sort_to_front(algorithms, SAM)
