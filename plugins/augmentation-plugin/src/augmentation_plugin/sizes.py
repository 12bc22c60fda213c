"""How large images are at a point in training: a schedule and its rounding. Independent of torch and the engine."""

from __future__ import annotations

import math

from engine_core.arguments import check_number, check_whole
from engine_core.errors import ArgumentError

__all__ = ["check_increment", "check_scale", "check_schedule", "resized_side", "resizing_scale", "scale_at"]

_EXACT = 1e-9
"""How far rounding may take a number from the bound it should be on, as it takes 1 - 0.7 from 3 / 10."""


def resizing_scale(
    elapsed: float, initial_scale: float = 0.5, finetune_fraction: float = 0.2, delay_fraction: float = 0.5
) -> float:
    """Return the scale of the images at a point in training.

    It is `initial_scale` up to `delay_fraction` of training, then grows linearly, and is 1 for the last
    `finetune_fraction`. Source: the progressive resizing of fast.ai (Howard), as implemented by MosaicML.

    Args:
        elapsed: the fraction of training that is done.

    Raises:
        ValueError: for an argument out of range, or two fractions that add up to more than 1.
        TypeError: for an argument that is not a number.

    Example:
        >>> [round(resizing_scale(tenth / 10), 3) for tenth in range(10)]
        [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.667, 0.833, 1.0, 1.0]
    """
    check_number("elapsed", elapsed, "[0, inf)", "the fraction of training that is done")
    return scale_at(elapsed, *check_schedule(initial_scale, finetune_fraction, delay_fraction))


def scale_at(elapsed: float, initial_scale: float, finetune_fraction: float, delay_fraction: float) -> float:
    """Return what `resizing_scale` does, for checked numbers."""
    if elapsed >= 1 - finetune_fraction - _EXACT:
        return 1.0
    if elapsed <= delay_fraction:
        return initial_scale
    done = (elapsed - delay_fraction) / (1 - finetune_fraction - delay_fraction)
    return initial_scale + (1 - initial_scale) * done


def resized_side(side: int, scale: float, size_increment: int = 1) -> int:
    """Return the height or width of an image at a scale, in pixels.

    It is `side * scale` rounded to the nearest multiple of `size_increment` (halves up), but at least one
    increment and at most `side`. At scale 1 it is `side`, a multiple or not.

    Example:
        >>> [resized_side(30, scale, 4) for scale in (0.01, 0.5, 0.9, 0.99, 1)]
        [4, 16, 28, 28, 30]
    """
    if scale >= 1:
        return side
    increments = math.floor(side * scale / size_increment + 0.5 + _EXACT)
    return min(side, max(1, increments) * size_increment)


def check_schedule(
    initial_scale: object, finetune_fraction: object, delay_fraction: object
) -> tuple[float, float, float]:
    """Return the three, if they form a schedule.

    Raises:
        ValueError: for an argument out of range, or two fractions that add up to more than 1.
    """
    scale = check_scale("initial_scale", initial_scale)
    finetune = check_number("finetune_fraction", finetune_fraction, "[0, 1]", "the last part, at full size")
    delay = check_number("delay_fraction", delay_fraction, "[0, 1]", "the first part, at initial_scale")
    if delay + finetune > 1:
        raise ArgumentError(
            f"delay_fraction={delay!r} and finetune_fraction={finetune!r} add up to more than the training: "
            "their sum may be at most 1"
        )
    return scale, finetune, delay


def check_scale(name: str, scale: object) -> float:
    """Return a scale if it is in (0, 1]."""
    return check_number(name, scale, "(0, 1]", "the size of the images as a fraction of their own, 1 at full size")


def check_increment(size_increment: object) -> int:
    """Return what height and width are multiples of, if it is a positive whole number."""
    return check_whole("size_increment", size_increment, "[1, inf)", "what height and width are multiples of")
