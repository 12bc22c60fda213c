"""What counts as a batch of images. Independent of the methods and the engine."""

from __future__ import annotations

import torch

from engine_core.errors import ArgumentError, ArgumentTypeError

__all__ = ["check_images", "memory_format_of"]


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
