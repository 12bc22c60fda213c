"""Images made of other places of the same images: what flips, shifts, rotations and shears have in common."""

from __future__ import annotations

import torch

from .images import memory_format_of

__all__ = ["as_movable", "pixels_at"]

_MOVED_AS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_MOVED_AS |= {dtype: torch.int8 for name, dtype in vars(torch).items() if name.startswith("float8_")}
"""For dtypes that torch can neither move nor fill, one of the same size that it can; zero has the same bits."""


def as_movable(images: torch.Tensor) -> torch.Tensor:
    """Return images, or a view of them whose dtype torch can move and fill with zeros."""
    return images.view(_MOVED_AS[images.dtype]) if images.dtype in _MOVED_AS else images


def pixels_at(
    images: torch.Tensor, ys: torch.Tensor, xs: torch.Tensor, outside: torch.Tensor | None = None
) -> torch.Tensor:
    """Return images (N, C, h, w) whose pixels are those of images (N, C, H, W) at ys and xs, row by row.

    Args:
        ys, xs: whole numbers that broadcast to (N, h, w), within the images.
        outside: which pixels are zero instead, a mask (N, h, w).

    Example:
        >>> images = torch.arange(4).view(1, 1, 2, 2)
        >>> pixels_at(images, torch.tensor([[[1], [0]]]), torch.tensor([[[0, 0]]]))
        tensor([[[[2, 2],
                  [0, 0]]]])
    """
    rows, channels, _, width = images.shape
    places = ys * width + xs
    places, size = places.expand(rows, -1, -1).flatten(1), places.shape[-2:]
    moved = as_movable(images).flatten(2).gather(2, places[:, None].expand(-1, channels, -1))
    moved = moved.view(rows, channels, *size)
    if outside is not None:
        moved.masked_fill_(outside[:, None], 0)
    return moved.view(images.dtype).contiguous(memory_format=memory_format_of(images))
