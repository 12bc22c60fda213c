"""The pass that places after other algorithms what has to see all that they have changed."""

from __future__ import annotations

from collections.abc import Sequence

from engine_core import Algorithm, Event, algorithm_pass, passes

from .activation_checkpointing import ActivationCheckpointing
from .compilation import Compile
from .fused_layernorm import FusedLayerNorm
from .layer_stacking import LayerStacking

__all__ = ["sort_compile_last"]


@algorithm_pass(
    name="sort_compile_last",
    description="compile after all algorithms that may change the model; before that, replace norms and checkpoint",
    stage="placement",
    before=("apply_declared_order",),  # what others declare, as one that goes between, wins
    events=(Event.INIT,),
)
def sort_compile_last(
    algorithms: Sequence[Algorithm],
    event: Event,  # noqa: ARG001  every pass gets it
) -> Sequence[Algorithm]:
    """Put FusedLayerNorm, ActivationCheckpointing and Compile last, in this order: others may add what they change.

    Only then LayerStacking takes blocks out of the model, which come back changed like the others.
    """
    for cls in (FusedLayerNorm, ActivationCheckpointing, Compile, LayerStacking):
        algorithms = passes.sort_to_back(algorithms, cls)
    return algorithms
