"""RandAugment as an algorithm of the engine: glue between State and `distort`."""

from __future__ import annotations

from typing import ClassVar

import torch

from engine_core import AlgorithmMetadata, Event, State
from engine_core.batch import BatchKey

from .augmenting import ImageAugmentation
from .distortions import check_distortable, check_strength, distort

__all__ = ["RandAugment"]


class RandAugment(ImageAugmentation):
    """Put each training image through some operations, drawn for it in each step.

    Source: Cubuk et al. 2019, RandAugment: Practical automated data augmentation with a reduced search space, arXiv
    1909.13719. See `rand_augment_batch` for the operations.

    Args:
        num_ops: the paper's N, how many operations each image goes through, at least 1.
        magnitude: the paper's M, how strong each is, in [0, 10]; 0 leaves images as they are.
        input_key: where the images (N, C, H, W), floats with mean 0, are in a batch.

    Example:
        >>> RandAugment(magnitude=5).num_ops
        2
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="rand_augment",
        description="rotate, shear, move and filter each image at random",
        events=(Event.AFTER_DATALOADER,),
        tags=("augmentation", "distorting"),
        after=("@resizing",),
        before=("@erasing",),
        writes=("batch",),
    )

    def __init__(self, num_ops: int = 2, magnitude: float = 9, input_key: BatchKey = 0) -> None:
        self.num_ops, self.magnitude = check_strength(num_ops, magnitude)
        super().__init__(input_key, rests=self.magnitude == 0)

    def check(self, images: torch.Tensor, state: State) -> None:
        """Raise unless images are floats."""
        check_distortable(f"the input (input_key={self.input_key!r})", images)

    def augment(self, images: torch.Tensor, state: State) -> torch.Tensor:
        """Return the images, each distorted."""
        return distort(images, self.num_ops, self.magnitude, self._generator.of(state, self))
