"""MixUp as an algorithm of the engine."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from engine_core import AlgorithmMetadata, State
from engine_core.batch import BatchKey

from .blending import check_blendable
from .mixing import EVENTS, Mixing
from .pairings import Draw

__all__ = ["MixUp"]


class MixUp(Mixing):
    """Train on blends of two rows, their targets or losses blended alike.

    Source: Zhang et al. 2017, mixup: Beyond Empirical Risk Minimization, arXiv 1710.09412. See `mixup_batch`.

    Args:
        alpha: both parameters of the Beta distribution of lambda, in (0, 1e6]; the smaller, the less two rows
            are mixed.
        interpolate_loss: mix the losses of the two targets, not the targets, for a loss that can't take dense ones.
        input_key, target_key: where inputs and targets are in a batch.

    Raises:
        ArgumentError, ArgumentTypeError: for an invalid argument.

    Example:
        >>> MixUp(alpha=0.4).metadata.name
        'mixup'
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="mixup",
        description="blend each row with another row of its batch",
        events=EVENTS,
        tags=("augmentation", "target_mixing", "blending"),
        conflicts=("@blending",),
        writes=("batch",),
    )

    def __init__(
        self,
        alpha: float = 0.2,
        interpolate_loss: bool = False,  # noqa: FBT001, FBT002  usually given by name
        input_key: BatchKey = 0,
        target_key: BatchKey = 1,
    ) -> None:
        super().__init__(alpha, interpolate_loss, input_key, target_key)
        if interpolate_loss:
            # Its second loss is right only if targets are already dense: it runs within @pasting, so is not @blending.
            tags = (*(tag for tag in self.metadata.tags if tag != "blending"), "loss_interpolation")
            self.metadata = self.metadata.replace(  # type: ignore[misc]  # this instance's own
                tags=tags, within=("@pasting",), writes=("batch", "loss"), needs=("row_loss",)
            )

    def check_input(self, rows: Any) -> None:
        """Raise unless these are floats."""
        check_blendable(rows)

    def mix_input(self, state: State, order: torch.Tensor, drawn: Draw) -> tuple[torch.Tensor, float]:
        """Return the blended inputs, and lambda."""
        partners = state.batches.part_of(state.batch, self.input_key, order)
        return torch.lerp(state.batch_get_item(self.input_key), partners, 1 - drawn.lam), drawn.lam
