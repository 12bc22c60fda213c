"""Clipping gradients by value or by the norms of weights, as an algorithm: glue between State and `clipping`."""

from __future__ import annotations

from typing import ClassVar

from torch.nn.utils import clip_grad_value_

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.arguments import check_number
from engine_core.errors import ArgumentError, did_you_mean

from .clipping import clip_adaptively
from .gradients import trained_parameters, with_gradient

__all__ = ["GradientClipping"]

_TYPES = ("value", "adaptive")


class GradientClipping(Algorithm):
    """Make gradients smaller before the optimizers step, by value or by the norms of the weights.

    Source of the adaptive one: Brock et al. 2021, High-Performance Large-Scale Image Recognition Without Normalization,
    arXiv 2102.06171, see `clip_adaptively`. Gradients are those of the whole batch and all processes, unscaled.

    Args:
        clipping_type: `"value"`: each number is at least `-clipping_threshold` and at most `clipping_threshold`;
            `"adaptive"`: the gradient of each unit is at most `clipping_threshold` times as long as its weights.
        clipping_threshold: above 0; that of the paper for large batches, if neither is given.

    Example:
        >>> GradientClipping("adaptive", 0.01).clipping_threshold
        0.01
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="gradient_clipping",
        description="make gradients smaller, by value or by the norms of the weights",
        events=(Event.AFTER_TRAIN_BATCH,),
        tags=("gradients",),
        after=("@augmentation",),
        writes=("model",),
        needs=("whole_weights",),
    )

    def __init__(self, clipping_type: str = "adaptive", clipping_threshold: float = 0.01) -> None:
        if clipping_type == "norm":
            raise ArgumentError(
                f"clipping_type='norm' is what the loop does itself: Trainer(..., grad_clip_norm={clipping_threshold})"
            )
        if clipping_type not in _TYPES:
            wrong = f"clipping_type={clipping_type!r} has to be 'value' or 'adaptive'"
            raise ArgumentError(wrong + did_you_mean(str(clipping_type), _TYPES))
        self.clipping_type = clipping_type
        self.clipping_threshold = check_number(
            "clipping_threshold", clipping_threshold, "(0, inf)", "the largest value, or norm in norms of the weights"
        )

    def match(self, event: Event, state: State) -> bool:
        """In each step."""
        return event is Event.AFTER_TRAIN_BATCH

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Clip."""
        if self.clipping_type == "adaptive":
            clip_adaptively(trained_parameters(state), self.clipping_threshold)
        else:
            clip_grad_value_(
                [weight for weight, _ in with_gradient(trained_parameters(state))], self.clipping_threshold
            )
