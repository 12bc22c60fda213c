"""Gated linear units as an algorithm of the engine."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from engine_core import AlgorithmMetadata, Event, State

from .gated_linear import Activation, GatedLinear, apply_gated_linear_units, check_activation
from .operation import Operation

__all__ = ["GatedLinearUnits"]

_NAME = "gated_linear_units"


class GatedLinearUnits(Operation):
    """Gate the feed-forward parts of a model: `(act(x W) * (x V)) W2` instead of `act(x W) W2`.

    Source: Shazeer 2020, GLU Variants Improve Transformer, arXiv 2002.05202. Replaced are Linear-activation-Linear
    runs of `nn.Sequential`, with or without dropout before the second Linear, and the feed-forward of
    `nn.TransformerEncoderLayer`. The parameters of such a part grow by half. See `apply_gated_linear_units`.

    Args:
        activation: None keeps the existing one; otherwise `gelu`, `identity`, `relu`, `sigmoid`, `silu`, `tanh`, or a
            function or module without parameters.

    Example:
        >>> GatedLinearUnits(activation="silu").required_on_load()
        True
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name=_NAME,
        description="gate the feed-forward parts of the model",
        events=(Event.INIT,),
        tags=("surgery", "layers", "gating"),
        writes=("model", "optimizers"),
        needs=("surgery",),
    )
    made = (GatedLinear,)

    def __init__(self, activation: str | Activation | None = None) -> None:
        check_activation(activation)
        self.activation = activation

    def operate(self, model: nn.Module, state: State) -> list[str]:
        """Replace the layers; weights are drawn from the run's seed."""
        generator = torch.Generator().manual_seed(state.derive_seed(_NAME, shared=True))
        return apply_gated_linear_units(model, self.activation, optimizers=state.optimizers, generator=generator)

    def looked_for(self) -> str:
        """The parts that can be gated."""
        return "Linear-activation-Linear runs of nn.Sequential and feed-forwards of nn.TransformerEncoderLayer"
