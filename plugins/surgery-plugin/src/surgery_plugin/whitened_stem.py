"""WhitenedStem: glue to the engine."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from engine_core import AlgorithmMetadata, Event, State

from .operation import Operation
from .whitening import (
    PatchSums,
    WhitenedConv2d,
    apply_whitened_stem,
    check_directions,
    check_eps,
    check_images,
    first_conv,
)

__all__ = ["WhitenedStem"]

_NAME = "whitened_stem"


class WhitenedStem(Operation):
    """Begin with a frozen whitening of patches, computed from the first batch, in place of the first convolution.

    Source: Jordan 2024, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU, arXiv 2404.00498, and before it tysam-code's
    hlb-CIFAR10. See `apply_whitened_stem`.

    Args:
        eps: added to the variance of each direction, so that those without any are not blown up.
        directions: how many filters, those with the largest variance, each with its negative; None: all.

    Example:
        >>> WhitenedStem(directions=12).eps
        0.0005
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name=_NAME,
        description="begin with a frozen whitening of patches, computed from the first batch",
        events=(Event.INIT,),
        tags=("surgery", "stem"),
        before=("@layers", "@blocks", "@memory_format"),
        writes=("model", "optimizers"),
        needs=("surgery", "first_batch"),
    )
    made = (WhitenedConv2d,)

    def __init__(self, eps: float = 5e-4, directions: int | None = None) -> None:
        self.eps = check_eps(eps)
        self.directions = check_directions(directions)

    def operate(self, model: nn.Module, state: State) -> list[str]:
        """Replace the first convolution, with filters that are the same on all ranks, from the rows of all."""
        conv, sums = first_conv(model), None
        if conv is not None and not state.loop.awaits_weights:
            images = check_images(state.objective.inputs_of(state.peek_batch()), conv)
            own = PatchSums.of(images, conv)
            first, *others = state.ranks.each((own.count, own.sums, own.products))
            sums = sum((PatchSums(*each) for each in others), PatchSums(*first))
        return apply_whitened_stem(
            model,
            sums,
            eps=self.eps,
            directions=self.directions,
            optimizers=state.optimizers,
            generator=torch.Generator().manual_seed(state.derive_seed(_NAME, shared=True)),
        )

    def looked_for(self) -> str:
        """A convolution, without which `operate` raises."""
        return "Conv2d"
