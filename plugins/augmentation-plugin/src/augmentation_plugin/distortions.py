"""The operations of RandAugment that need no range of values, as functions of a batch. Independent of the engine."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from engine_core.arguments import check_number, check_whole
from engine_core.errors import ArgumentError
from engine_core.randomness import private_unless

from .images import check_images
from .pixels import pixels_at

__all__ = ["OPERATIONS", "check_distortable", "check_strength", "distort", "rand_augment_batch"]

OPERATIONS = ("identity", "rotate", "shear_x", "shear_y", "translate_x", "translate_y", "contrast", "sharpness")
_ANGLE, _SHEAR, _TRANSLATION, _BLEND = 30.0, 0.3, 0.45, 0.9
"""At magnitude 10: degrees, pixels aside for each pixel across, fractions of the side, and what is added to 1."""


def rand_augment_batch(
    input: torch.Tensor,  # noqa: A002  the field's name for it
    num_ops: int = 2,
    magnitude: float = 9,
    *,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Return images of which each went through some operations, drawn for it with replacement.

    Source: Cubuk et al. 2019, RandAugment: Practical automated data augmentation with a reduced search space, arXiv
    1909.13719, with the ranges of its code. Of its 14 operations the 8 in `OPERATIONS` are here, which mean the same
    for images of any mean and scale. Each operation has a sign, drawn too.

    Args:
        input: images (N, C, H, W), floats; they are not changed. Their mean should be about 0, since zeros come in at
            the edges.
        num_ops: the paper's N, how many operations each image goes through, at least 1.
        magnitude: the paper's M, in [0, 10]. At 10: rotations by 30 degrees, shears by 0.3, translations by 0.45 of the
            side, contrast and sharpness times 0.1 or 1.9. At 0 nothing changes.
        generator: where the draws come from; None: a private one, seeded by the system.

    Returns:
        A new tensor of the same shape, dtype, device and memory format.

    Raises:
        ValueError, TypeError: for an argument out of range, or anything but images of floats.

    Example:
        >>> images = torch.randn(8, 3, 32, 32)
        >>> rand_augment_batch(images, num_ops=2, magnitude=5).shape
        torch.Size([8, 3, 32, 32])
    """
    check_distortable("input", check_images("input", input))
    count, magnitude = check_strength(num_ops, magnitude)
    return distort(input, count, magnitude, private_unless(generator))


def check_strength(num_ops: object, magnitude: object) -> tuple[int, float]:
    """Return the paper's N and M, if they are valid."""
    count = check_whole("num_ops", num_ops, "[1, inf)", "how many operations each image goes through")
    return count, check_number("magnitude", magnitude, "[0, 10]", "how strong each operation is")


def check_distortable(name: str, images: torch.Tensor) -> None:
    """Raise unless images are floats that torch can compute with."""
    if not images.is_floating_point() or images.element_size() == 1:
        raise ArgumentError(
            f"{name} has images of {images.dtype}: convert them to floats with mean 0 in the data, since zeros come in "
            "at the edges"
        )


def distort(images: torch.Tensor, num_ops: int, magnitude: float, generator: torch.Generator) -> torch.Tensor:
    """Return what `rand_augment_batch` does, for checked arguments.

    All operations are drawn first, one row of draws for each round, then all signs.
    """
    drawn = (
        torch.randint(kinds, (num_ops, len(images)), generator=generator, device=generator.device).cpu()
        for kinds in (len(OPERATIONS), 2)
    )
    distorted = images.clone()
    for operations, signs in zip(*drawn, strict=True):
        strengths = magnitude / 10 * (1 - 2 * signs)
        for name, change in (("rotate", _move), ("contrast", _contrast), ("sharpness", _sharpen)):
            first = OPERATIONS.index(name)
            last = OPERATIONS.index("translate_y") if change is _move else first
            rows = ((operations >= first) & (operations <= last)).nonzero().flatten()  # on the CPU: no wait for a GPU
            if len(rows):
                there = rows.to(images.device, non_blocking=True)
                given = distorted.index_select(0, there)
                distorted.index_copy_(0, there, change(given, operations[rows], strengths[rows]))
    return distorted


def _move(images: torch.Tensor, operations: torch.Tensor, strengths: torch.Tensor) -> torch.Tensor:
    """Rotate, shear and translate about the centre, with the nearest pixel, as the paper's code does."""
    height, width = images.shape[-2:]
    pairs = zip(operations.tolist(), strengths.tolist(), strict=True)
    found = torch.tensor([_sources(OPERATIONS[place], strength, height, width) for place, strength in pairs])
    matrices = found.to(images.device, non_blocking=True)[:, :, :, None, None]  # (n, 2, 3, 1, 1)
    down, across = (torch.arange(side, device=images.device) - (side - 1) / 2 for side in (height, width))
    places = matrices[:, :, 0] * down[:, None] + matrices[:, :, 1] * across + matrices[:, :, 2]  # (n, 2, H, W)
    ys, xs = ((places[:, dim] + ((side - 1) / 2 + 0.5)).floor().long() for dim, side in enumerate((height, width)))
    outside = (ys < 0) | (ys >= height) | (xs < 0) | (xs >= width)
    return pixels_at(images, ys.clamp_(0, height - 1), xs.clamp_(0, width - 1), outside)


def _sources(operation: str, strength: float, height: int, width: int) -> list[list[float]]:
    """Return the matrix (2, 3) from a pixel (y, x, 1), from the centre on, to where it comes from."""
    if operation == "rotate":
        angle = math.radians(_ANGLE * strength)
        return [[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]]
    sheared, moved = _SHEAR * strength, _TRANSLATION * strength
    return {
        "shear_x": [[1.0, 0.0, 0.0], [sheared, 1.0, 0.0]],
        "shear_y": [[1.0, sheared, 0.0], [0.0, 1.0, 0.0]],
        "translate_x": [[1.0, 0.0, 0.0], [0.0, 1.0, moved * width]],
        "translate_y": [[1.0, 0.0, moved * height], [0.0, 1.0, 0.0]],
    }[operation]


def _contrast(images: torch.Tensor, _: torch.Tensor, strengths: torch.Tensor) -> torch.Tensor:
    """Blend each image with its mean, channel by channel."""
    return _blended(images, images.float().mean((2, 3), keepdim=True), strengths)


def _sharpen(images: torch.Tensor, _: torch.Tensor, strengths: torch.Tensor) -> torch.Tensor:
    """Blend each image with a smooth one, as Pillow does: 5 times a pixel and its neighbours; the edges stay."""
    height, width = images.shape[-2:]
    if min(height, width) < 3:
        return images
    smooth, inner = images.float().clone(), images[:, :, 1:-1, 1:-1].float()
    smooth[:, :, 1:-1, 1:-1] = (9 * F.avg_pool2d(images.float(), 3, stride=1) + 4 * inner) / 13
    return _blended(images, smooth, strengths)


def _blended(images: torch.Tensor, others: torch.Tensor, strengths: torch.Tensor) -> torch.Tensor:
    """Return others at factor 0, images at 1, and what lies beyond them at a larger one."""
    factors = (1 + _BLEND * strengths).to(images.device, others.dtype, non_blocking=True)[:, None, None, None]
    return torch.lerp(others, images.to(others.dtype), factors).to(images.dtype)
