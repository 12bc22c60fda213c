"""FusedLayerNorm as an algorithm of the engine."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from engine_core import AlgorithmMetadata, Event, State

from .compute_dtype_layernorm import ComputeDtypeLayerNorm, apply_fused_layernorm
from .operation import Operation

__all__ = ["FusedLayerNorm"]


class FusedLayerNorm(Operation):
    """Compute each nn.LayerNorm of a model with one kernel in the dtype of the mixed precision.

    Under autocast on CUDA torch computes `layer_norm` in float32, converting to it and back. See
    `ComputeDtypeLayerNorm`.

    Example:
        >>> FusedLayerNorm().required_on_load()
        True
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="fused_layernorm",
        description="compute LayerNorm with one kernel in the dtype of the mixed precision",
        events=(Event.INIT,),
        tags=("surgery", "normalization"),
        writes=("model.LayerNorm",),
        needs=("surgery",),
    )
    made = (ComputeDtypeLayerNorm,)

    def operate(self, model: nn.Module, state: State) -> list[str]:
        """Replace the layers."""
        return apply_fused_layernorm(model)

    def looked_for(self) -> str:
        """The class that is replaced."""
        return "nn.LayerNorm"
