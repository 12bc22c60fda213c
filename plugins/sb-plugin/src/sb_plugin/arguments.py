"""What arguments may be, checked where they are given. Knows nothing of what they are for."""

from __future__ import annotations

from engine_core.arguments import check_number, check_whole
from engine_core.errors import ArgumentError

__all__ = ["check_interrupt", "check_interval", "check_keep", "check_scale_factor"]


def check_keep(keep: object) -> float:
    """Return the fraction of rows to keep, if it is in (0, 1]."""
    return check_number("keep", keep, "(0, 1]", "the fraction of rows to keep, as 0.5 is")


def check_scale_factor(scale_factor: object) -> float:
    """Return the factor for the size of the scoring input, if it is in (0, 1]."""
    return check_number("scale_factor", scale_factor, "(0, 1]", "0.5 scores at half the size, 1 at full size")


def check_interval(start: object, end: object) -> tuple[float, float]:
    """Return both ends of the interval of training, if 0 <= start < end <= 1."""
    what = "a fraction of the whole training"
    first, last = check_number("start", start, "[0, 1]", what), check_number("end", end, "[0, 1]", what)
    if first >= last:
        raise ArgumentError(f"start={first!r} has to be before end={last!r}, or no step is ever selected")
    return first, last


def check_interrupt(interrupt: object) -> int:
    """Return after how many steps an ordinary one comes, if it is a whole number from 0 on."""
    return check_whole("interrupt", interrupt, "[0, inf)", "every how many batches an ordinary step comes, 0: never")
