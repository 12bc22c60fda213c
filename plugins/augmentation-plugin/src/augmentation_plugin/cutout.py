"""CutOut as an algorithm of the engine: glue between State and `cut_holes`."""

from __future__ import annotations

from typing import ClassVar

import torch

from engine_core import AlgorithmMetadata, Event, State
from engine_core.batch import BatchKey

from .augmenting import ImageAugmentation
from .holes import check_holes, cut_holes

__all__ = ["CutOut"]


class CutOut(ImageAugmentation):
    """Fill square holes in the images of each training batch with zeros.

    Source: DeVries and Taylor 2017, Improved Regularization of Convolutional Neural Networks with Cutout, arXiv
    1708.04552. Each row has its own holes, new ones in each step. See `cutout_batch`.

    Args:
        num_holes: how many each row gets, at least 1; they may overlap.
        length: the side of a hole as a fraction of the image's shorter side, in (0, 1].
        input_key: where the images (N, C, H, W) are in a batch.

    Example:
        >>> CutOut(length=0.25).num_holes
        1
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="cutout",
        description="fill square holes in the images with zeros",
        events=(Event.AFTER_DATALOADER,),
        tags=("augmentation", "erasing"),
        after=("@resizing",),
        writes=("batch",),
    )

    def __init__(self, num_holes: int = 1, length: float = 0.5, input_key: BatchKey = 0) -> None:
        self.num_holes, self.length = check_holes(num_holes, length)
        super().__init__(input_key)

    def augment(self, images: torch.Tensor, state: State) -> torch.Tensor:
        """Return copies that have holes."""
        return cut_holes(images, self.num_holes, self.length, self._generator.of(state, self))
