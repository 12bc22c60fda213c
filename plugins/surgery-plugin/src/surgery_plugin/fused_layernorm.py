"""FusedLayerNorm as an algorithm of the engine."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from engine_core import AlgorithmMetadata, Event, State
from engine_core.arguments import check_flag

from .compute_dtype_layernorm import ComputeDtypeGroupNorm, ComputeDtypeLayerNorm, apply_fused_layernorm
from .operation import Operation

__all__ = ["FusedLayerNorm"]


class FusedLayerNorm(Operation):
    """Compute each nn.LayerNorm of a model with one kernel in the dtype of the mixed precision.

    Under autocast on CUDA torch computes `layer_norm` and `group_norm` in float32, converting to it and back. See
    `ComputeDtypeLayerNorm` and `ComputeDtypeGroupNorm`.

    Args:
        group_norm: compute each nn.GroupNorm so too.

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
    made = (ComputeDtypeLayerNorm, ComputeDtypeGroupNorm)

    def __init__(self, *, group_norm: bool = False) -> None:
        self.group_norm = check_flag("group_norm", group_norm)
        if group_norm:
            own = self.metadata.replace(writes=(*(self.metadata.writes or ()), "model.GroupNorm"))
            self.metadata = own  # type: ignore[misc]  # this instance's own

    def operate(self, model: nn.Module, state: State) -> list[str]:
        """Replace the layers."""
        return apply_fused_layernorm(model, group_norm=self.group_norm)

    def looked_for(self) -> str:
        """The classes that are replaced."""
        return "nn.LayerNorm or nn.GroupNorm" if self.group_norm else "nn.LayerNorm"
