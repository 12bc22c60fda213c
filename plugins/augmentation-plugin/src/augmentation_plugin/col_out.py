"""ColOut: as a function of a batch, and as an algorithm of the engine."""

from __future__ import annotations

import math
from typing import Any, ClassVar, TypeVar

import torch

from engine_core import AlgorithmMetadata, Event, State
from engine_core.arguments import check_flag, check_key, check_number, item_at
from engine_core.batch import BatchKey
from engine_core.randomness import private_unless

from .augmenting import ImageAugmentation
from .images import check_images, check_setter, memory_format_of
from .resizing import check_targets

__all__ = ["ColOut", "col_out_batch"]

T = TypeVar("T")


def col_out_batch(
    input: torch.Tensor,  # noqa: A002  the field's name for it
    target: T,
    p_row: float = 0.15,
    p_col: float = 0.15,
    resize_targets: bool = False,  # noqa: FBT001, FBT002  as in `resize_batch`
    *,
    generator: torch.Generator | None = None,
) -> tuple[torch.Tensor, T]:
    """Return smaller images, of which some rows and columns of pixels are left out, the same in all images.

    Source: MosaicML's ColOut. The arguments are not changed.

    Args:
        input: images (N, C, H, W) of any dtype.
        target: with `resize_targets` a tensor (N, H, W) or (N, K, H, W) of any dtype; else anything.
        p_row, p_col: the fraction of rows and of columns that is left out, in [0, 1). What is kept is rounded down, but
            at least one.
        resize_targets: leave the same rows and columns out of the target.
        generator: where the draws come from; None: a private one, seeded by the system.

    Returns:
        Images and target, with dtype, device and memory format as they were.

    Raises:
        ValueError, TypeError: for a fraction out of range, or anything but images and targets of their size.

    Example:
        >>> images, classes = torch.rand(8, 3, 32, 32), torch.arange(8)
        >>> col_out_batch(images, classes, p_row=0.25, p_col=0.5)[0].shape
        torch.Size([8, 3, 24, 16])
    """
    check_images("input", input)
    _check_fractions(p_row, p_col)
    if check_flag("resize_targets", resize_targets):
        check_targets("target", target, input)
    kept = _draw_kept(input, (p_row, p_col), private_unless(generator))
    return _only(input, kept), _only(target, kept) if resize_targets else target


def _check_fractions(p_row: object, p_col: object) -> tuple[float, float]:
    return (
        check_number("p_row", p_row, "[0, 1)", "the fraction of the rows of pixels that is left out"),
        check_number("p_col", p_col, "[0, 1)", "the fraction of the columns of pixels that is left out"),
    )


def _draw_kept(
    images: torch.Tensor, fractions: tuple[float, float], generator: torch.Generator
) -> dict[int, torch.Tensor]:
    """Draw which rows and columns are kept, each in its order; return them by dimension."""
    kept = {}
    for dim, fraction in zip((-2, -1), fractions, strict=True):
        side = images.shape[dim]
        number = max(1, math.floor((1 - fraction) * side + 1e-9))  # rounding may have taken a little of a whole number
        drawn = torch.randperm(side, generator=generator, device=generator.device)[:number]
        kept[dim] = drawn.sort().values.to(images.device, non_blocking=True)
    return kept


def _only(images: Any, kept: dict[int, torch.Tensor]) -> Any:
    """Return the pixels of the kept rows and columns."""
    smaller = images
    for dim, places in kept.items():
        smaller = smaller.index_select(dim, places)
    return smaller.contiguous(memory_format=memory_format_of(images))


class ColOut(ImageAugmentation):
    """Leave some rows and columns of pixels out of the images of each training batch, in each step others.

    Source: MosaicML's ColOut. See `col_out_batch`. The model has to take images of any size; only those of training get
    smaller.

    Args:
        p_row, p_col: the fraction of rows and of columns that is left out, in [0, 1). 0 for both leaves images as they
            are.
        resize_targets: leave them out of targets (N, H, W) or (N, K, H, W) too.
        input_key, target_key: where images (N, C, H, W) and targets are in a batch; the second is only used with
            `resize_targets`.

    Example:
        >>> ColOut(p_row=0.1).p_col
        0.15
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="col_out",
        description="leave some rows and columns of pixels out of the images",
        events=(Event.AFTER_DATALOADER,),
        tags=("augmentation", "resizing"),
        after=("progressive_resizing",),
        writes=("batch",),
    )

    def __init__(
        self,
        p_row: float = 0.15,
        p_col: float = 0.15,
        resize_targets: bool = False,  # noqa: FBT001, FBT002  as in progressive_resizing
        input_key: BatchKey = 0,
        target_key: BatchKey = 1,
    ) -> None:
        self.p_row, self.p_col = _check_fractions(p_row, p_col)
        self.resize_targets = check_flag("resize_targets", resize_targets)
        super().__init__(input_key, shared=True, rests=not self.p_row and not self.p_col)
        check_key("target_key", target_key)
        self.target_key = target_key

    def check(self, images: torch.Tensor, state: State) -> None:
        """Raise if the targets can't get smaller with the images."""
        if self.resize_targets:
            targets = item_at(state.batch, "target_key", self.target_key)
            check_targets(f"the target (target_key={self.target_key!r})", targets, images)
            check_setter(state.batch, "target_key", self.target_key)

    def augment(self, images: torch.Tensor, state: State) -> torch.Tensor:
        """Return smaller images, and replace the targets if asked."""
        kept = _draw_kept(images, (self.p_row, self.p_col), self._generator.of(state, self))
        if self.resize_targets:
            state.batch_set_item(self.target_key, _only(state.batch_get_item(self.target_key), kept))
        smaller: torch.Tensor = _only(images, kept)
        return smaller
