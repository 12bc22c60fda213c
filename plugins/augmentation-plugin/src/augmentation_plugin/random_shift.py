"""RandomShift: as a function of a batch, and as an algorithm of the engine."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch.nn import functional as F

from engine_core import AlgorithmMetadata, Event, State
from engine_core.arguments import check_whole
from engine_core.batch import BatchKey
from engine_core.errors import ArgumentError
from engine_core.randomness import private_unless

from .augmenting import ImageAugmentation
from .images import check_images
from .pixels import as_movable, pixels_at

__all__ = ["RandomShift", "random_shift_batch"]


def random_shift_batch(
    input: torch.Tensor,  # noqa: A002  the field's name for it
    max_shift: int = 2,
    padding: str = "zeros",
    *,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Return images that are moved by some pixels, each row by its own.

    Shifts are uniform over the whole numbers from `-max_shift` to `max_shift`, down and to the right, as when an image
    is padded on all sides and a window of its own size is cut out at random. That is the older part of the usual
    augmentation of CIFAR-10, as in He et al. 2015, Deep Residual Learning for Image Recognition, arXiv 1512.03385.

    Args:
        input: images (N, C, H, W) of any dtype; they are not changed.
        max_shift: in pixels, less than `min(H, W)`.
        padding: what comes in at the edge: `zeros`, or the image mirrored at its last pixel, `reflect`.
        generator: where the draws come from; None: a private one, seeded by the system.

    Returns:
        A new tensor of the same shape, dtype, device and memory format.

    Raises:
        ValueError, TypeError: for an argument out of range, or anything but images.

    Example:
        >>> images = torch.ones(8, 3, 16, 16)
        >>> moved = random_shift_batch(images, 4, generator=torch.Generator())
        >>> bool((moved.sum((1, 2, 3)) >= 3 * 12 * 12).all())
        True
    """
    check_images("input", input)
    max_shift, padding = _check_arguments(max_shift, padding)
    _check_size(input, max_shift)
    return _shift(input, max_shift, padding, private_unless(generator))


def _check_arguments(max_shift: object, padding: object) -> tuple[int, str]:
    if padding not in ("zeros", "reflect"):
        raise ArgumentError(f"padding={padding!r} has to be 'zeros' or 'reflect'")
    return check_whole("max_shift", max_shift, "[0, inf)", "how many pixels an image is moved at most"), padding


def _check_size(images: torch.Tensor, max_shift: int) -> None:
    height, width = images.shape[-2:]
    if max_shift >= min(height, width):
        raise ArgumentError(
            f"max_shift={max_shift} would move images of {height} x {width} out of sight: it has to be less than "
            f"{min(height, width)}"
        )


def _shift(images: torch.Tensor, max_shift: int, padding: str, generator: torch.Generator) -> torch.Tensor:
    """Return what `random_shift_batch` does, for checked arguments."""
    drawn = torch.randint(-max_shift, max_shift + 1, (2, len(images), 1), generator=generator, device=generator.device)
    (height, width), (down, right) = images.shape[-2:], drawn.to(images.device, non_blocking=True)
    ys, xs = torch.arange(height, device=images.device) - down, torch.arange(width, device=images.device) - right
    if padding == "zeros":
        images = F.pad(as_movable(images), (max_shift,) * 4).view(images.dtype)
        ys, xs = ys + max_shift, xs + max_shift
    else:
        ys, xs = (last - (last - places.abs()).abs() for places, last in ((ys, height - 1), (xs, width - 1)))
    return pixels_at(images, ys[:, :, None], xs[:, None, :])


class RandomShift(ImageAugmentation):
    """Move each training image by up to some pixels, in each step by others.

    Source: the padding and cropping of CIFAR-10, as in He et al. 2015, arXiv 1512.03385. See `random_shift_batch`.

    Args:
        max_shift: in pixels, from 0 on; less than the shorter side of the images. 0 leaves them as they are.
        padding: what comes in at the edge: `zeros`, or the image mirrored at its last pixel, `reflect`.
        input_key: where the images (N, C, H, W) are in a batch.

    Example:
        >>> RandomShift(4, padding="reflect").max_shift
        4
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="random_shift",
        description="move each image by some pixels",
        events=(Event.AFTER_DATALOADER,),
        tags=("augmentation", "shifting"),
        before=("@resizing", "@distorting", "@erasing"),
        writes=("batch",),
    )

    def __init__(self, max_shift: int = 2, padding: str = "zeros", input_key: BatchKey = 0) -> None:
        self.max_shift, self.padding = _check_arguments(max_shift, padding)
        super().__init__(input_key, rests=self.max_shift == 0)

    def check(self, images: torch.Tensor, state: State) -> None:
        """Raise if a shift may move images out of sight."""
        _check_size(images, self.max_shift)

    def augment(self, images: torch.Tensor, state: State) -> torch.Tensor:
        """Return the images, each moved."""
        return _shift(images, self.max_shift, self.padding, self._generator.of(state, self))
