"""Lengths of training as loops and algorithms need them: has an interval passed, is the end reached."""

from __future__ import annotations

from collections.abc import Callable

from .errors import ArgumentError, ArgumentTypeError
from .state import State
from .time import FIELD_OF, Time, Timestamp, TimeUnit

__all__ = ["Interval", "end_test"]

_COUNTED = (TimeUnit.EPOCH, TimeUnit.BATCH, TimeUnit.SAMPLE, TimeUnit.SECOND)


def _checked(time: Time | str, what: str) -> Time:
    try:
        time = Time(time)
    except (ArgumentError, ArgumentTypeError) as error:
        raise type(error)(f"{what}: {error}") from None
    if time.unit not in _COUNTED:
        raise ArgumentError(f"{what}: what is counted is ep, ba, sp and sec, so it can't be {str(time)!r}")
    if time.value <= 0:
        raise ArgumentError(f"{what} has to be positive, not {str(time)!r}")
    return time


class Interval:
    """Every so many epochs, batches, samples or seconds.

    Example:
        >>> Interval("2ba", "eval_interval").passed(Timestamp(batch=3), Timestamp(batch=4))
        True
    """

    def __init__(self, length: Time | str, what: str) -> None:
        self.length = _checked(length, what)
        self._field = FIELD_OF[self.length.unit]
        self._value = self.length.value
        self.in_epochs = self.length.unit is TimeUnit.EPOCH

    def passed(self, before: Timestamp, after: Timestamp) -> bool:
        """Was a whole number of intervals completed between two positions?"""
        then, now = before[self._field], after[self._field]
        return then != now and then // self._value != now // self._value


def end_test(state: State, end: Time, what: str) -> Callable[[], bool]:
    """Return a function that tells whether the clock has reached `end` or somebody asked to stop."""
    end = _checked(end, what)
    field, value = FIELD_OF[end.unit], end.value
    return lambda: state.timestamp[field] >= value or state.stop_requested
