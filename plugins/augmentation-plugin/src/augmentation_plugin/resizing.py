"""Smaller images and targets, as functions of a batch. Independent of the engine."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch.nn import functional as F

from engine_core.arguments import check_flag
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.randomness import private_unless

from .images import check_images, memory_format_of
from .sizes import check_increment, check_scale, resized_side

__all__ = ["check_mode", "check_resizable", "check_targets", "resize_batch"]

MODES = ("resize", "crop")
T = TypeVar("T")


def resize_batch(  # noqa: PLR0913  the reference has the first five
    input: torch.Tensor,  # noqa: A002  the field's name for it
    target: T,
    scale_factor: float,
    mode: str = "resize",
    resize_targets: bool = False,  # noqa: FBT001, FBT002  the reference has it so
    *,
    size_increment: int = 1,
    generator: torch.Generator | None = None,
) -> tuple[torch.Tensor, T]:
    """Return smaller images, and targets of the same size if asked.

    Images are interpolated bilinearly with antialiasing, as in Pillow and torchvision, so that no pixel is skipped;
    targets take the value of the nearest pixel. Or one window, the same for all rows, is cut out of both. The arguments
    are not changed.

    Args:
        input: images (N, C, H, W); to be interpolated, of a floating dtype or uint8. Half precision is computed in
            float32, and uint8 too, then rounded.
        target: with `resize_targets` a tensor (N, H, W) or (N, K, H, W) of any dtype; else anything.
        scale_factor: in (0, 1]; 1 returns what was given.
        mode: `resize` interpolates, `crop` cuts out a window, uniform over all positions.
        size_increment: new height and width are multiples of it, see `resized_side`.
        generator: where the window's position comes from; None: a private one, seeded by the system.

    Returns:
        Images and targets; new tensors of the same dtype, device and memory format, or what was given if the size is
        the same.

    Raises:
        ValueError: for arguments out of range, and shapes or dtypes that can't be resized.
        TypeError: for anything but a tensor or a generator where one is needed.

    Example:
        >>> images, classes = torch.ones(8, 3, 32, 48), torch.arange(8)
        >>> [tensor.shape for tensor in resize_batch(images, classes, 0.5)]
        [torch.Size([8, 3, 16, 24]), torch.Size([8])]
    """
    check_mode(mode)
    check_resizable(check_images("input", input), mode)
    if check_flag("resize_targets", resize_targets):
        check_targets("target", target, input)
    scale, increment = check_scale("scale_factor", scale_factor), check_increment(size_increment)
    full: tuple[int, int] = (input.shape[-2], input.shape[-1])
    size = (resized_side(full[0], scale, increment), resized_side(full[1], scale, increment))
    if size == full:
        return input, target
    both: list[Any] = [input, target] if resize_targets else [input]
    if mode == "crop":
        window = _draw_window(full, size, private_unless(generator))
        both = [tensor[window].clone(memory_format=memory_format_of(tensor)) for tensor in both]  # no view
    else:
        both = [_interpolated(input, size), *(_nearest(tensor, size) for tensor in both[1:])]
    return both[0], both[1] if resize_targets else target


def check_mode(mode: object) -> str:
    """Return the mode if it exists."""
    if not isinstance(mode, str):
        raise ArgumentTypeError(f"mode={mode!r} has to be {' or '.join(map(repr, MODES))}")
    if mode not in MODES:
        raise ArgumentError(f"mode={mode!r} has to be {' or '.join(map(repr, MODES))}")
    return mode


def check_resizable(images: torch.Tensor, mode: str) -> None:
    """Raise if the values of images can't be interpolated; indices, for example, have no mean."""
    if mode == "resize" and not images.is_floating_point() and images.dtype is not torch.uint8:
        raise ArgumentError(
            f"images of {images.dtype} can't be interpolated: convert them to floats in the data, or set mode='crop'"
        )


def check_targets(name: str, targets: object, images: torch.Tensor) -> None:
    """Raise unless targets have the height and width of the images."""
    if not isinstance(targets, torch.Tensor):
        raise ArgumentTypeError(f"{name} has to be a tensor to be resized, not a {type(targets).__name__}")
    if targets.dim() not in (3, 4) or targets.shape[-2:] != images.shape[-2:] or len(targets) != len(images):
        raise ArgumentError(
            f"{name} of shape {tuple(targets.shape)} can't be resized with images of shape {tuple(images.shape)}: give "
            "(N, H, W) or (N, K, H, W) of the same rows, height and width, or set resize_targets=False"
        )


def _draw_window(full: tuple[int, int], size: tuple[int, int], generator: torch.Generator) -> tuple[Any, ...]:
    """Draw the position of a window, uniform over all positions inside the image."""
    first = [
        int(torch.randint(whole - part + 1, (), generator=generator, device=generator.device))
        for whole, part in zip(full, size, strict=True)
    ]
    return (..., *(slice(start, start + part) for start, part in zip(first, size, strict=True)))


def _interpolated(images: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    values = images if images.dtype in (torch.float32, torch.float64) else images.float()
    smaller = F.interpolate(values, size=size, mode="bilinear", antialias=True)
    smaller = smaller if images.is_floating_point() else smaller.round_()
    return smaller.to(images.dtype).contiguous(memory_format=memory_format_of(images))


def _nearest(targets: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Take the pixels that contain the centres of the new ones; F.interpolate takes no integers."""
    taken = targets
    for dim, new in zip((-2, -1), size, strict=True):
        centres = 2 * torch.arange(new, device=targets.device) + 1  # in halves of a new pixel
        taken = taken.index_select(dim, centres * targets.shape[dim] // (2 * new))
    return taken.contiguous(memory_format=memory_format_of(targets))
