"""CutMix as a function of one batch: a box of each image comes from another image. Independent of the engine."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from .images import check_images
from .pairings import MixedBatch, check_alpha, draw, of_partners

__all__ = ["Box", "box_of", "cutmix_batch", "paste"]


class Box(NamedTuple):
    """A box of pixels: rows `top` to `bottom` and columns `left` to `right`, the last not included."""

    top: int
    bottom: int
    left: int
    right: int


def cutmix_batch(
    input: torch.Tensor,  # noqa: A002  the field's name for it
    target: Any,
    alpha: float = 1.0,
    *,
    generator: torch.Generator | None = None,
) -> MixedBatch:
    """Paste a box from another image of the batch into each image.

    Source: Yun et al. 2019, CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features,
    arXiv 1905.04899. One lambda from Beta(alpha, alpha) and one box for the batch; the `lam` that is returned is the
    exact share of pixels that stay. See `mix_targets` and `mix_losses` for what to do with the targets.

    Args:
        input: images (N, C, H, W) of any dtype.
        target: tensors (N, ...), also in tuples, lists and mappings, or None; `torch.arange(N)` gives
            the pairing itself.
        generator: where the draws come from; None: seeded by the system.

    Raises:
        ArgumentTypeError: (a TypeError) if `input` is not a tensor, or `generator` is not a generator.
        ArgumentError: (a ValueError) if `input` has another shape, there is not one target per row, or alpha is not
            in (0, 1e6].

    Example:
        >>> one_hot = torch.eye(4)
        >>> images = one_hot.view(4, 4, 1, 1).expand(4, 4, 8, 8)
        >>> mixed, paired, lam = cutmix_batch(images, torch.arange(4), generator=torch.Generator().manual_seed(0))
        >>> torch.allclose(mixed.mean((2, 3)), lam * one_hot + (1 - lam) * one_hot[paired])
        True
    """
    check_alpha(alpha)
    check_images("input", input)
    drawn = draw(alpha, generator)
    order = drawn.pairing(input.shape[0]).to(input.device, non_blocking=True)
    mixed, lam = paste(input, order, drawn.lam, drawn.place)
    return MixedBatch(mixed, of_partners(target, order), lam)


def paste(
    images: torch.Tensor, order: torch.Tensor, lam: float, place: tuple[float, float]
) -> tuple[torch.Tensor, float]:
    """Return the images (N, C, H, W) with a box of their partners, and the share of pixels that stay."""
    height, width = images.shape[-2:]
    top, bottom, left, right = box_of(height, width, lam, place)
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = images[..., top:bottom, left:right].index_select(0, order)
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)


def box_of(height: int, width: int, lam: float, place: tuple[float, float]) -> Box:
    """Return the box that takes about `1 - lam` of the image, around a place, clipped at the borders.

    Args:
        place: the centre, (vertical, horizontal), as fractions of the image in [0, 1).

    Example:
        >>> box_of(8, 8, 0.75, (0.5, 0.0))
        Box(top=2, bottom=6, left=0, right=2)
    """
    top, bottom = _side(height, lam, place[0])
    left, right = _side(width, lam, place[1])
    return Box(top, bottom, left, right)


def _side(length: int, lam: float, place: float) -> tuple[int, int]:
    size = int(length * math.sqrt(1 - lam))
    start = int(place * length) - size // 2
    return max(start, 0), min(start + size, length)
