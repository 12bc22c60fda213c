"""CutMix as an algorithm of the engine."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from engine_core import AlgorithmMetadata, State
from engine_core.batch import BatchKey, map_batch
from engine_core.errors import ArgumentError

from .images import check_images
from .mixing import EVENTS, Mixing
from .pairings import Draw
from .pasting import paste

__all__ = ["CutMix"]


class CutMix(Mixing):
    """Train on images with a box pasted from another image, their targets or losses mixed by area.

    Source: Yun et al. 2019, CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features,
    arXiv 1905.04899. See `cutmix_batch`.

    Args:
        alpha: both parameters of the Beta distribution of lambda, in (0, 1e6]; at 1, all are equally likely.
        interpolate_loss: mix the losses of the two targets, not the targets, for a loss that can't take dense ones.
        input_key, target_key: where images (N, C, H, W) and targets are in a batch.

    Raises:
        ArgumentError, ArgumentTypeError: for an invalid argument.

    Example:
        >>> CutMix(interpolate_loss=True).metadata.writes
        ('batch', 'loss')
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="cutmix",
        description="paste a box from another image of the batch into each image",
        events=EVENTS,
        tags=("augmentation", "target_mixing", "pasting"),
        within=("@blending",),
        conflicts=("@pasting",),
        writes=("batch",),
    )

    def __init__(
        self,
        alpha: float = 1.0,
        interpolate_loss: bool = False,  # noqa: FBT001, FBT002  usually given by name
        input_key: BatchKey = 0,
        target_key: BatchKey = 1,
    ) -> None:
        super().__init__(alpha, interpolate_loss, input_key, target_key)
        if interpolate_loss:
            tags = (*self.metadata.tags, "loss_interpolation")
            self.metadata = self.metadata.replace(  # type: ignore[misc]  # this instance's own
                tags=tags, writes=("batch", "loss"), needs=("row_loss",)
            )

    def check_input(self, rows: Any) -> None:
        """Raise unless these are images."""
        check_images(f"the input of cutmix (input_key={self.input_key!r})", rows)

    def check_target(self, target: Any) -> None:
        """Raise for per-pixel targets: the box would have to be pasted there too."""
        map_batch(target, _refuse_pixels)

    def mix_input(self, state: State, order: torch.Tensor, drawn: Draw) -> tuple[torch.Tensor, float]:
        """Return the images with a box of their partners, and the share of pixels that stay."""
        images = state.batch_get_item(self.input_key)
        if len(images) != len(order):
            raise ArgumentError(
                f"cutmix takes images (N, C, H, W), and of {tuple(images.shape)} the rows are {len(order)}"
            )
        return paste(images, order, drawn.lam, drawn.place)


def _refuse_pixels(leaf: Any) -> None:
    if isinstance(leaf, torch.Tensor) and leaf.dim() > 2:
        raise ArgumentError(
            f"CutMix mixes targets by area, one share for the whole image; targets {tuple(leaf.shape)} are per "
            "pixel, and each pixel belongs to one of the two images: use MixUp, or targets (N,) or (N, classes)"
        )
