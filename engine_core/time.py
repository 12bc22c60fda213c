"""Lengths and positions of a training run: `Time`, its units, the immutable `Timestamp`, and intervals. A leaf."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeGuard

from .errors import ArgumentError, ArgumentTypeError, nearest

__all__ = ["FIELD_OF", "Interval", "Time", "TimeUnit", "Timestamp", "as_number", "is_length", "length_named"]


class TimeUnit(str, Enum):
    """What a `Time` counts."""

    EPOCH = "ep"
    BATCH = "ba"
    SAMPLE = "sp"
    TOKEN = "tok"  # noqa: S105  a token of text, not a password
    DURATION = "dur"
    SECOND = "sec"

    def __str__(self) -> str:
        return self.value

    @classmethod
    def _missing_(cls, value: object) -> TimeUnit:
        raise ArgumentError(f"{value!r} is not a unit of time; known: {', '.join(unit.value for unit in cls)}")


_CONTINUOUS = (TimeUnit.DURATION, TimeUnit.SECOND)
_COUNTED = re.compile(r"(-?\d+(?:\.\d+)?)\s*(ep|ba|sp|tok|dur|sec)")
_CLOCK = re.compile(r"(?:(\d+)h)?\s*(?:(\d+)m)?\s*(?:(\d+)s)?")
_FORMS = "write it as '10ep', '500ba', '4096sp', '1000tok', '0.5dur', '30sec' or '1h30m'"


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class Time:
    """A length of training in one unit: `Time("10ep")`, `Time(10, "ep")`, `Time("1h30m")`.

    Epochs, batches, samples and tokens are whole numbers; `dur` (the fraction of the whole training) and seconds
    need not be. Arithmetic and comparison stay within one unit, and a bare number takes the unit of the other side.

    Args:
        value: text such as `"10ep"`, a number (then `unit` is required), or another Time.
        unit: a `TimeUnit` or its short name.

    Raises:
        ArgumentError: (a ValueError) for text that is not a length.
        ArgumentTypeError: (a TypeError) for a bare number, or for mixed units in arithmetic and ordering.

    Example:
        >>> Time("90m") == Time(5400, "sec"), Time("10ep") - 4, Time("1ep") == Time("1ba")
        (True, Time('6ep'), False)
    """

    value: int | float
    unit: TimeUnit

    def __init__(self, value: float | str | Time, unit: TimeUnit | str | None = None) -> None:
        if isinstance(value, Time) and unit is None:
            unit, value = value.unit, value.value
        elif isinstance(value, str) and unit is None:
            value, unit = _parse(value)
        elif type(value) not in (int, float) and not _is_number(value := as_number(value)):
            raise ArgumentTypeError(f"{value!r} is not a length of training; {_FORMS}")
        elif unit is None:
            raise ArgumentTypeError(f"a bare number has no unit: write '{value}ep' for {value} epochs, or {_FORMS[9:]}")
        object.__setattr__(self, "unit", TimeUnit(unit))
        object.__setattr__(self, "value", _checked(value, self.unit))  # type: ignore[arg-type]  # a number by now

    def __str__(self) -> str:
        return f"{self.value}{self.unit.value}"

    def __repr__(self) -> str:
        return f"Time('{self}')"

    def __bool__(self) -> bool:
        return bool(self.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def _other(self, other: object) -> int | float:
        """Return the number that `other` is in this unit."""
        if isinstance(other, str):
            other = Time(other)
        if isinstance(other, Time):
            if other.unit is not self.unit:
                raise ArgumentTypeError(f"{self!r} and {other!r} have different units and can't be combined")
            return other.value
        if _is_number(other := as_number(other)):
            return other
        raise ArgumentTypeError(f"{other!r} is neither a Time nor a number")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Time):
            return self.unit is other.unit and self.value == other.value
        if isinstance(other := as_number(other), (int, float)):
            return self.value == other
        return NotImplemented

    def __lt__(self, other: Time | float | str) -> bool:
        return self.value < self._other(other)

    def __le__(self, other: Time | float | str) -> bool:
        return self.value <= self._other(other)

    def __gt__(self, other: Time | float | str) -> bool:
        return self.value > self._other(other)

    def __ge__(self, other: Time | float | str) -> bool:
        return self.value >= self._other(other)

    def __add__(self, other: Time | float | str) -> Time:
        return Time(self.value + self._other(other), self.unit)

    __radd__ = __add__

    def __sub__(self, other: Time | float | str) -> Time:
        return Time(self.value - self._other(other), self.unit)

    def __rsub__(self, other: float | str) -> Time:
        return Time(self._other(other) - self.value, self.unit)

    def __neg__(self) -> Time:
        return Time(-self.value, self.unit)

    def __mul__(self, factor: float) -> Time:
        """Scale; whole-number units are truncated, after rounding so that `0.29 * 100` is 29."""
        if not _is_number(factor := as_number(factor)):
            raise ArgumentTypeError(f"{self!r} can be multiplied by a number, not by {factor!r}")
        product = self.value * factor
        return Time(product if self.unit in _CONTINUOUS else int(round(product, 9)), self.unit)

    __rmul__ = __mul__

    def __truediv__(self, other: Time | float | str) -> float:
        """Return the ratio of two lengths of one unit."""
        return self.value / self._other(other)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)


def as_number(value: Any) -> Any:
    """Return a scalar of NumPy or torch as the number of Python that it is, and anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)) else value


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _checked(value: float, unit: TimeUnit) -> int | float:
    if not -sys.float_info.max <= value <= sys.float_info.max:  # refuses NaN, and integers too large for a float
        raise ArgumentError(f"{str(value)[:30]} is not a length of training")
    if unit in _CONTINUOUS:
        return value
    if value != int(value):
        name = {TimeUnit.BATCH: "batches"}.get(unit, f"{unit.name.lower()}s")
        raise ArgumentError(f"'{value}{unit.value}': {name} are counted in whole numbers")
    return int(value)


def _parse(text: str) -> tuple[int | float, str]:
    cleaned = text.strip().lower()
    if counted := _COUNTED.fullmatch(cleaned):
        number, unit = counted.groups()
        return (float(number) if "." in number else int(number)), unit
    clock = _CLOCK.fullmatch(cleaned)
    if cleaned and clock:
        hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return 3600 * hours + 60 * minutes + seconds, "sec"
    is_bare = cleaned.lstrip("-").replace(".", "", 1).isdigit()
    raise ArgumentError(f"{text!r} {'has no unit' if is_bare else 'is not a length of training'}; {_FORMS}")


def is_length(value: object) -> bool:
    """Is it a Time, or text of a number and a unit, if only nearly one? What is wrong with it, `Time(value)` tells.

    A number without a unit, and one with a word as short as a unit, is meant as a length too.
    """
    if not isinstance(value, str):
        return isinstance(value, Time)
    text = value.strip().lower()
    word = re.fullmatch(r"-?\d+(?:\.\d+)?\s*([a-z]*)", text)
    units = [name for unit in TimeUnit for name in (unit.value, unit.name.lower())]
    longest = max(len(unit.value) for unit in TimeUnit)
    is_meant = word and (len(word[1]) <= longest or nearest(word[1], units, cutoff=0.75))
    return bool(is_meant or (text and _CLOCK.fullmatch(text)))


class Timestamp(NamedTuple):
    """A position in a training run, in total and within the epoch. Immutable; advancing makes a new one.

    Samples and tokens are counted as they come from the loader, before any algorithm prunes a batch. Seconds are
    wall-clock time spent in training, without evaluation.

    Example:
        >>> Timestamp().to_next_batch(samples=32).to_next_epoch().get("sp")
        Time('32sp')
    """

    epoch: int = 0
    batch: int = 0
    sample: int = 0
    token: int = 0
    batch_in_epoch: int = 0
    sample_in_epoch: int = 0
    token_in_epoch: int = 0
    elapsed_s: float = 0.0
    elapsed_s_in_epoch: float = 0.0

    def to_next_batch(self, samples: int = 0, tokens: int = 0, duration_s: float = 0.0) -> Timestamp:
        """Return the position one batch later."""
        epoch, batch, sample, token, batch_in_epoch, sample_in_epoch, token_in_epoch, elapsed_s, in_epoch_s = self
        # Runs every step: one tuple, and no Python frame of Timestamp(...).
        return tuple.__new__(
            Timestamp,
            (
                epoch,
                batch + 1,
                sample + samples,
                token + tokens,
                batch_in_epoch + 1,
                sample_in_epoch + samples,
                token_in_epoch + tokens,
                elapsed_s + duration_s,
                in_epoch_s + duration_s,
            ),
        )

    def to_next_epoch(self) -> Timestamp:
        """Return the position at the start of the next epoch."""
        return Timestamp(self.epoch + 1, self.batch, self.sample, self.token, 0, 0, 0, self.elapsed_s, 0.0)

    def get(self, unit: TimeUnit | str) -> Time:
        """Return the total in `unit`; `dur` needs the length of the whole training, see `State`."""
        unit = TimeUnit(unit)
        if unit is TimeUnit.DURATION:
            raise ArgumentError("a Timestamp does not know the total: use State.get_elapsed_duration() for 'dur'")
        return Time(self[FIELD_OF[unit]], unit)


_WHOLE = (TimeUnit.EPOCH, TimeUnit.BATCH, TimeUnit.SAMPLE, TimeUnit.TOKEN)
FIELD_OF = {unit: Timestamp._fields.index(unit.name.lower()) for unit in _WHOLE}
FIELD_OF[TimeUnit.SECOND] = Timestamp._fields.index("elapsed_s")
"""Where a Timestamp keeps what each unit counts."""


class Interval:
    """Every so many epochs, batches, samples, tokens or seconds.

    Example:
        >>> Interval("2ba", "eval_interval").passed(Timestamp(batch=3), Timestamp(batch=4))
        True
    """

    def __init__(self, length: Time | str, what: str) -> None:
        self.length = length_named(what, length)
        if self.length.unit is TimeUnit.DURATION:
            raise ArgumentError(f"{what}: give it in ep, ba, sp, tok or sec, not as {str(self.length)!r}")
        if self.length.value <= 0:
            raise ArgumentError(f"{what} has to be positive, not {str(self.length)!r}")
        self._field = FIELD_OF[self.length.unit]
        self._value = self.length.value
        self.in_epochs = self.length.unit is TimeUnit.EPOCH

    def passed(self, before: Timestamp, after: Timestamp) -> bool:
        """Was a whole number of intervals completed between two positions?"""
        then, now = before[self._field], after[self._field]
        return then != now and then // self._value != now // self._value


def length_named(name: str, value: Time | str) -> Time:
    """Return an argument as a length; an error names it."""
    try:
        return value if isinstance(value, Time) else Time(value)
    except (ArgumentError, ArgumentTypeError) as error:
        raise type(error)(f"{name}: {error}") from None
