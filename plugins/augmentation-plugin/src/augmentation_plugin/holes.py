"""Square holes in images (DeVries and Taylor 2017), as functions of a batch. Independent of the engine."""

from __future__ import annotations

import math

import torch

from engine_core.arguments import check_number, check_whole
from engine_core.randomness import private_unless

from .images import check_images
from .pixels import as_movable

__all__ = ["check_holes", "cut_holes", "cutout_batch", "hole_side", "mask_of"]


def cutout_batch(
    input: torch.Tensor,  # noqa: A002  the field's name for it
    num_holes: int = 1,
    length: float = 0.5,
    *,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Return images with square holes of zeros, each row with its own.

    Source: DeVries and Taylor 2017, Improved Regularization of Convolutional Neural Networks with Cutout, arXiv
    1708.04552. The centre of a hole is uniform over all pixels, and what sticks out of the image is clipped.

    Args:
        input: images (N, C, H, W) of any dtype; they are not changed. All channels have the same holes.
        num_holes: how many each row gets, at least 1; they may overlap.
        length: the side of a hole as a fraction of `min(H, W)`, in (0, 1]; see `hole_side`.
        generator: where the draws come from; None: a private one, seeded by the system.

    Returns:
        A new tensor of the same shape, dtype, device and memory format.

    Raises:
        ValueError: for `num_holes` or `length` out of range, or an input of another shape.
        TypeError: if `input` is not a tensor, or `generator` is not a generator.

    Example:
        >>> images = torch.ones(8, 3, 16, 16)
        >>> holes = cutout_batch(images, length=0.5, generator=torch.Generator()) == 0
        >>> bool((holes.sum((1, 2, 3)) <= 3 * 8 * 8).all())
        True
    """
    check_images("input", input)
    count, length = check_holes(num_holes, length)
    return cut_holes(input, count, length, private_unless(generator))


def check_holes(num_holes: object, length: object) -> tuple[int, float]:
    """Return the number and relative side of the holes, if they are valid."""
    count = check_whole("num_holes", num_holes, "[1, inf)", "how many holes each row gets")
    return count, check_number(
        "length", length, "(0, 1]", "the side of a hole as a fraction of the image's shorter one"
    )


def hole_side(height: int, width: int, length: float) -> int:
    """Return the side of a hole in pixels: `length * min(height, width)` rounded down, but at least one.

    Example:
        >>> hole_side(32, 48, 0.5), hole_side(100, 100, 0.29), hole_side(8, 8, 0.01)
        (16, 29, 1)
    """
    return max(1, math.floor(length * min(height, width) + 1e-9))


def cut_holes(images: torch.Tensor, count: int, length: float, generator: torch.Generator) -> torch.Tensor:
    """Return what `cutout_batch` does, for checked arguments."""
    rows, _, height, width = images.shape
    ys, xs = (
        torch.randint(limit, (rows, count, 1), generator=generator, device=generator.device).to(
            images.device, non_blocking=True
        )
        for limit in (height, width)
    )
    mask = mask_of(ys, xs, height, width, hole_side(height, width, length))
    holed = images.clone()  # masked_fill would lose the memory format
    as_movable(holed).masked_fill_(mask.unsqueeze(1), 0)
    return holed


def mask_of(ys: torch.Tensor, xs: torch.Tensor, height: int, width: int, side: int) -> torch.Tensor:
    """Return which pixels are in a hole (rows, height, width), for centres at ys, xs (rows, holes, 1).

    A hole starts at `centre - side // 2` and has `side` pixels in each direction; so an even one reaches a pixel
    further up and left than down and right.

    Example:
        >>> mask_of(torch.tensor([[[0]]]), torch.tensor([[[2]]]), 3, 4, 2).int()
        tensor([[[0, 1, 1, 0],
                 [0, 0, 0, 0],
                 [0, 0, 0, 0]]], dtype=torch.int32)
    """
    down, across = _covered(ys, height, side), _covered(xs, width, side)
    mask = down[:, 0, :, None] & across[:, 0, None, :]
    for hole in range(1, ys.shape[1]):  # all holes at once would take that many times the memory
        mask |= down[:, hole, :, None] & across[:, hole, None, :]
    return mask


def _covered(centres: torch.Tensor, pixels: int, side: int) -> torch.Tensor:
    """Return which pixels along one axis are in a hole (rows, holes, pixels)."""
    place, first = torch.arange(pixels, device=centres.device), centres - side // 2
    return (place >= first) & (place < first + side)
