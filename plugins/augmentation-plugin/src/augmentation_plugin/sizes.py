"""How large images are at a moment of the training: a schedule and its rounding. Knows no tensor and no engine."""

from __future__ import annotations

import math

from engine_core.arguments import check_number, check_whole
from engine_core.errors import ArgumentError

__all__ = ["check_increment", "check_scale", "check_schedule", "resized_side", "resizing_scale", "scale_at"]

_EXACT = 1e-9
"""How far from a bound a number may be that would be on it but for rounding, as 1 - 0.7 and 3 / 10 are apart."""


def resizing_scale(
    elapsed: float, initial_scale: float = 0.5, finetune_fraction: float = 0.2, delay_fraction: float = 0.5
) -> float:
    """Return the scale of the images at a moment of the training.

    It is `initial_scale` up to `delay_fraction` of the training, then grows linearly, and is 1 for the last
    `finetune_fraction`. Source: the progressive resizing of fast.ai (Howard), in the form that MosaicML gave it.

    Args:
        elapsed: the fraction of the training that is done.

    Raises:
        ValueError: for one out of range, or two fractions that are more than the training.
        TypeError: for what is no number.

    Example:
        >>> [round(resizing_scale(tenth / 10), 3) for tenth in range(10)]
        [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.667, 0.833, 1.0, 1.0]
    """
    check_number("elapsed", elapsed, "[0, inf)", "the fraction of the training that is done")
    return scale_at(elapsed, *check_schedule(initial_scale, finetune_fraction, delay_fraction))


def scale_at(elapsed: float, initial_scale: float, finetune_fraction: float, delay_fraction: float) -> float:
    """Return what `resizing_scale` does, of numbers that are checked."""
    if elapsed >= 1 - finetune_fraction - _EXACT:
        return 1.0
    if elapsed <= delay_fraction:
        return initial_scale
    done = (elapsed - delay_fraction) / (1 - finetune_fraction - delay_fraction)
    return initial_scale + (1 - initial_scale) * done


def resized_side(side: int, scale: float, size_increment: int = 1) -> int:
    """Return the height or width of an image at a scale, in pixels.

    It is `side * scale` rounded to the nearest multiple of `size_increment` (up from the middle), but at least one
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
    """Return the three, if they make a schedule.

    Raises:
        ValueError: for one out of range, or two fractions that are more than the training.
    """
    scale = check_scale("initial_scale", initial_scale)
    finetune = check_number("finetune_fraction", finetune_fraction, "[0, 1]", "the last part, at full size")
    delay = check_number("delay_fraction", delay_fraction, "[0, 1]", "the first part, at initial_scale")
    if delay + finetune > 1:
        raise ArgumentError(
            f"delay_fraction={delay!r} and finetune_fraction={finetune!r} are together more than the training: "
            "their sum may be 1 at most"
        )
    return scale, finetune, delay


def check_scale(name: str, scale: object) -> float:
    """Return a scale that is in (0, 1]."""
    return check_number(name, scale, "(0, 1]", "the size of the images as a fraction of their own, 1 at full size")


def check_increment(size_increment: object) -> int:
    """Return what height and width are multiples of, if it is a whole number from 1 on."""
    return check_whole("size_increment", size_increment, "[1, inf)", "what height and width are multiples of")
