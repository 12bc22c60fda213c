"""What counts as a batch of images, and how one is put into a batch. Independent of the methods and the engine."""

from __future__ import annotations

from typing import Any

import torch

from engine_core.batch import BatchKey, get_item, set_item
from engine_core.errors import ArgumentError, ArgumentTypeError

__all__ = ["check_images", "check_setter", "memory_format_of"]


def check_images(name: str, images: object) -> torch.Tensor:
    """Return images if they are one tensor of shape (N, C, H, W).

    Three dimensions are refused because (N, H, W) can't be told from (N, C, length), and five because data sets differ
    in which three of them are spatial.

    Raises:
        ArgumentTypeError: (a TypeError) for anything but a tensor.
        ArgumentError: (a ValueError) for another number of dimensions, and for images without pixels.
    """
    if not isinstance(images, torch.Tensor):
        raise ArgumentTypeError(f"{name} has to be one tensor of images (N, C, H, W), not a {type(images).__name__}")
    if images.dim() != 4:
        remedy = "convert them in the data"
        if images.dim() == 3:
            remedy = "give greyscale images a channel dimension, as unsqueeze(1) does"
        raise ArgumentError(f"{name} has to be images (N, C, H, W), not {tuple(images.shape)}: {remedy}")
    if not images.shape[-1] * images.shape[-2]:
        raise ArgumentError(f"{name} has images without pixels: {tuple(images.shape)}")
    return images


def memory_format_of(tensor: torch.Tensor) -> torch.memory_format:
    """Return the memory format for what is computed from a tensor."""
    if tensor.dim() == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    return torch.contiguous_format


def check_setter(batch: Any, argument: str, key: BatchKey) -> None:
    """Raise if the user's setter writes into the batch itself: what it overwrites is lost for all epochs."""
    if not isinstance(key, tuple):
        return
    item = get_item(batch, key)
    alias = item.view_as(item) if hasattr(item, "view_as") else item
    changed = set_item(batch, key, alias)
    wrote = alias is not item and get_item(batch, key) is alias
    if wrote or changed is batch:
        set_item(batch, key, item)
        raise ArgumentError(
            f"the setter of {argument} writes into the loader's batch, which may be the loader's own data: it has "
            "to return a copy of the batch, and of everything on the way to the item"
        )
