"""What arguments may be, checked where they are given. Knows nothing of what they are for."""

from __future__ import annotations

import math
from numbers import Integral, Real

from engine_core.errors import ArgumentError, ArgumentTypeError

__all__ = ["check_interrupt", "check_interval", "check_keep", "check_key", "check_scale_factor"]


def check_keep(keep: object) -> float:
    """Return the fraction of rows to keep, if it is in (0, 1]."""
    return _fraction("keep", keep, "the fraction of rows to keep, as 0.5 is")


def check_scale_factor(scale_factor: object) -> float:
    """Return the factor for the size of the scoring input, if it is in (0, 1]."""
    return _fraction("scale_factor", scale_factor, "0.5 scores at half the size, 1 at full size")


def check_interval(start: object, end: object) -> tuple[float, float]:
    """Return both ends of the interval of training, if 0 <= start < end <= 1."""
    first, last = _number("start", start), _number("end", end)
    for name, value in (("start", first), ("end", last)):
        if not 0 <= value <= 1:
            raise ArgumentError(f"{name}={value!r} has to be within [0, 1]: a fraction of the whole training")
    if first >= last:
        raise ArgumentError(f"start={first!r} has to be before end={last!r}, or no step is ever selected")
    return first, last


def check_interrupt(interrupt: object) -> int:
    """Return after how many steps an ordinary one comes, if it is a whole number from 0 on."""
    if isinstance(interrupt, bool) or not isinstance(interrupt, Integral):
        raise ArgumentTypeError(f"interrupt={interrupt!r} has to be a whole number of batches, or 0 for never")
    if interrupt < 0:
        raise ArgumentError(f"interrupt={interrupt!r} can't be negative: give a number of batches, or 0 for never")
    return int(interrupt)


def check_key(name: str, key: object) -> None:
    """Raise unless `key` can say where an item is in a batch."""
    if type(key) is not bool and isinstance(key, (str, Integral)):
        return
    if isinstance(key, tuple) and len(key) == 2 and all(map(callable, key)):
        return
    raise ArgumentTypeError(f"{name}={key!r} has to be an index, a key or attribute name, or a pair (getter, setter)")


def _fraction(name: str, value: object, remedy: str) -> float:
    number = _number(name, value)
    if not 0 < number <= 1:
        raise ArgumentError(f"{name}={value!r} has to be within (0, 1]: {remedy}")
    return number


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentTypeError(f"{name}={value!r} ({type(value).__name__}) has to be a number")
    number = float(value)
    if not math.isfinite(number):
        raise ArgumentError(f"{name}={value!r} has to be a finite number")
    return number
