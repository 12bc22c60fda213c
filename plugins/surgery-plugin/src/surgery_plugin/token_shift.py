"""TokenShift: glue to the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import nn

from engine_core import AlgorithmMetadata, Event, State

from .operation import Operation
from .shifted_norm import NORMS, ShiftedNorm, apply_token_shift, check_norms, check_share

__all__ = ["TokenShift"]


class TokenShift(Operation):
    """Mix the token before into what attention and feed-forward see, a learned share in each channel.

    Source: Peng et al. 2023, RWKV, arXiv 2305.13048. See `apply_token_shift`.

    Args:
        norms: patterns of the norms' names, in which `*` stands for anything.
        share: of the token before, at first; each channel learns its own.

    Example:
        >>> TokenShift(norms=["blocks.*.norm1", "blocks.*.norm2"]).share
        0.25
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="token_shift",
        description="mix the token before into what attention and feed-forward see",
        events=(Event.INIT,),
        tags=("surgery", "layers", "token_mixing"),
        after=("@downsampling", "@channel_attention", "@gating"),
        writes=("model.LayerNorm", "model.RMSNorm", "optimizers"),
        needs=("surgery",),
    )
    made = (ShiftedNorm,)

    def __init__(self, norms: str | Sequence[str] = NORMS, share: float = 0.25) -> None:
        self.norms, self.share = check_norms(norms), check_share(share)

    def operate(self, model: nn.Module, state: State) -> list[str]:
        """Wrap the norms of the model."""
        return apply_token_shift(model, norms=self.norms, share=self.share, optimizers=state.optimizers)

    def looked_for(self) -> str:
        """The norms that the patterns name."""
        return f"norm named {' or '.join(self.norms)}"
