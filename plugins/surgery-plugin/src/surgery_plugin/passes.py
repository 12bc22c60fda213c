"""The pass that places FusedLayerNorm after other algorithms that change layers."""

from __future__ import annotations

from collections.abc import Sequence

from engine_core import Algorithm, Event, algorithm_pass, passes

from .fused_layernorm import FusedLayerNorm
from .layer_stacking import LayerStacking

__all__ = ["sort_fused_layernorm_last"]


@algorithm_pass(
    name="sort_fused_layernorm_last",
    description="replace normalisations after all algorithms that may add some",
    stage="placement",
    events=(Event.INIT,),
)
def sort_fused_layernorm_last(
    algorithms: Sequence[Algorithm],
    event: Event,  # noqa: ARG001  every pass gets it
) -> Sequence[Algorithm]:
    """Put FusedLayerNorm last, as what others add may contain an nn.LayerNorm too; only then blocks leave the model."""
    return passes.sort_to_back(passes.sort_to_back(algorithms, FusedLayerNorm), LayerStacking)
