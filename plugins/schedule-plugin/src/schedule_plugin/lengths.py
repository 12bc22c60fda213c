"""How long sequences are at a point of the warm-up, as numbers. Independent of torch and the engine."""

from __future__ import annotations

import math

from engine_core.arguments import check_number, check_whole
from engine_core.errors import ArgumentError

__all__ = ["check_lengths", "cut_length", "length_at", "warmup_length"]

_EXACT = 1e-9
"""How far rounding may take a length from the whole number that it should be, as it takes 100 * 0.29 from 29."""


def warmup_length(done: float, full: int, min_seq_length: int = 8, step_size: int = 8) -> int:
    """Return the length of sequences at a point of the warm-up.

    It grows linearly from `min_seq_length` to `full`, rounded down to a multiple of `step_size`. Source: Li et al.
    2022, The Stability-Efficiency Dilemma: Investigating Sequence Length Warmup for Training GPT Models, arXiv
    2108.06084.

    Args:
        done: the fraction of the warm-up that is done; 1 and more is its end.
        full: the length at the end, in tokens.
        min_seq_length: the length at the start, in tokens.
        step_size: lengths between the two are multiples of it.

    Raises:
        ValueError: for a number out of range.
        TypeError: for an argument that is not a number.

    Example:
        >>> [warmup_length(tenth / 10, 64) for tenth in range(11)]
        [8, 8, 16, 24, 24, 32, 40, 40, 48, 56, 64]
    """
    check_number("done", done, "[0, inf)", "the fraction of the warm-up that is done")
    check_whole("full", full, "[1, inf)", "the length at the end, in tokens")
    check_lengths(min_seq_length, None, step_size)
    return length_at(done, full, min_seq_length, step_size)


def length_at(done: float, full: int, least: int, step: int) -> int:
    """Return what `warmup_length` does, for checked numbers."""
    if done >= 1 or full <= least:
        return full
    grown = math.floor(least + (full - least) * done + _EXACT)
    return max(least, grown - grown % step)


def cut_length(length: int, rows: int, least: int, step: int) -> int:
    """Return the longest of the warm-up's lengths, up to `length`, into which rows can be cut without a rest.

    Args:
        rows: the length of the rows, in tokens.

    Raises:
        ArgumentError: (a ValueError) if not even the first length divides that of the rows.

    Example:
        >>> [cut_length(length, 64, 8, 8) for length in (8, 24, 32, 56, 64)]
        [8, 16, 32, 32, 64]
    """
    if rows % least:
        fitting = [each for each in range(1, rows + 1) if not rows % each]
        near = sorted({max(each for each in fitting if each < least), min(each for each in fitting if each > least)})
        raise ArgumentError(
            f"rows of {rows} tokens can't be cut into pieces of min_seq_length={least} without a rest: set "
            f"min_seq_length={' or '.join(map(str, near))}, or truncate=True, which leaves the rest out"
        )
    return next((each for each in range(length - length % step, least, -step) if not rows % each), least)


def check_lengths(least: object, most: object, step: object) -> tuple[int, int | None, int]:
    """Return the first length, the last one, and the step, if they are whole numbers that make a schedule."""
    first = check_whole("min_seq_length", least, "[1, inf)", "the length of sequences at the start, in tokens")
    size = check_whole("step_size", step, "[1, inf)", "by how many tokens sequences grow")
    if most is None:
        return first, None, size
    last = check_whole("max_seq_length", most, "[1, inf)", "the length of sequences at the end, in tokens")
    if last < first:
        raise ArgumentError(f"max_seq_length={last} is below min_seq_length={first}: sequences grow from that to this")
    return first, last, size
