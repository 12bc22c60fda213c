"""Checks of an algorithm's arguments, for its constructor, with messages that say what would be accepted."""

from __future__ import annotations

import math
import os
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal

from .batch import BatchKey, get_item
from .errors import ArgumentError, ArgumentTypeError, BatchKeyError
from .state import State, train_length
from .time import Interval, Time, TimeUnit, as_number, length_named

__all__ = [
    "check_flag",
    "check_interval",
    "check_key",
    "check_length",
    "check_number",
    "check_taken",
    "check_whole",
    "interval_in_run",
    "item_at",
    "length_in_run",
    "path_of",
]


def check_number(name: str, value: object, interval: str, what: str) -> float:
    """Return a finite number if it is within an interval; scalars of NumPy and torch are numbers too.

    Args:
        interval: in mathematical notation: `"(0, 1]"`, `"[0, inf)"`.
        what: what the number means, for the message.

    Raises:
        ArgumentTypeError: (a TypeError) for anything but a number.
        ArgumentError: (a ValueError) for one outside the interval.

    Example:
        >>> check_number("smoothing", 0.1, "[0, 1)", "the share of the uniform distribution")
        0.1
        >>> check_number("smoothing", 1, "[0, 1)", "the share of the uniform distribution")
        Traceback (most recent call last):
        engine_core.errors.ArgumentError: smoothing=1 has to be within [0, 1): the share of the uniform distribution
    """
    value = as_number(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentTypeError(f"{name}={value!r} ({type(value).__name__}) has to be a number")
    number = float(value)
    if not math.isfinite(number):
        raise ArgumentError(f"{name}={value!r} has to be a finite number")
    _check_within(name, number, value, interval, what)
    return number


def check_whole(name: str, value: object, interval: str, what: str) -> int:
    """Return a whole number if it is within an interval, see `check_number`.

    Example:
        >>> check_whole("interval", 2, "[1, inf)", "every how many steps")
        2
    """
    value = as_number(value)
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ArgumentTypeError(f"{name}={value!r} ({type(value).__name__}) has to be a whole number: {what}")
    _check_within(name, number := int(value), value, interval, what)
    return number


def check_flag(name: str, value: object) -> bool:
    """Return the value if it is True or False; `0` and `"no"` are neither."""
    if not isinstance(value := as_number(value), bool):
        raise ArgumentTypeError(f"{name}={value!r} ({type(value).__name__}) has to be True or False")
    return value


def check_length(name: str, value: Time | str) -> Time:
    """Return a length of training, from 0 on: in ep, ba, sp, tok or sec, or the fraction `dur` of the whole, up to 1.

    Example:
        >>> check_length("warmup", "0.1dur")
        Time('0.1dur')
    """
    length = length_named(name, value)
    if length.value < 0 or (length.unit is TimeUnit.DURATION and length.value > 1):
        raise ArgumentError(f"{name}={str(length)!r} has to be within the training: 0 or more, and at most 1dur")
    return length


def check_interval(name: str, value: Time | str) -> Time:
    """Return a length of training as `check_length` does, but longer than 0; `interval_in_run` locates it.

    Example:
        >>> check_interval("interval", "0.1dur")
        Time('0.1dur')
    """
    length = length_named(name, value)
    if length.value <= 0:
        raise ArgumentError(f"{name} has to be positive, not {str(length)!r}")
    return check_length(name, length)


def interval_in_run(state: State, name: str, value: Time | str) -> Interval:
    """Return an argument as an interval in this run; `0.1dur` is that fraction of the run's `max_duration`.

    Example:
        >>> interval_in_run(State(max_duration="50ba"), "interval", "0.1dur").length
        Time('5ba')
    """
    length = check_interval(name, value)
    try:
        return Interval(length_in_run(state, length), name)
    except ArgumentError as error:
        raise ArgumentError(f"{name}: {error}") from None


def length_in_run(state: State, length: Time | str, unit: TimeUnit | None = None) -> Time:
    """Return a length in `unit`, rounded down, at least 1; `0.1dur` is that fraction of the run's `max_duration`.

    Without `unit`, a fraction is given in epochs if these are whole, else in batches, and other lengths as they are.

    Raises:
        ArgumentError: (a ValueError) for a fraction of a training whose `max_duration` is not in `ep` or `ba`, and
            where epochs and batches mix but the training loader has no length.

    Example:
        >>> length_in_run(State(max_duration="10ep"), "0.3dur")
        Time('3ep')
    """
    given = Time(length)
    if unit is given.unit or (unit is None and given.unit is not TimeUnit.DURATION):
        return given
    value, own = given.value, given.unit
    if own is TimeUnit.DURATION:
        whole = None if state.max_duration is None else Time(state.max_duration)
        if whole is None or whole.unit not in (TimeUnit.EPOCH, TimeUnit.BATCH):
            what = "not known" if whole is None else repr(str(whole))
            raise ArgumentError(f"max_duration is {what}, so {str(given)!r} of it can't be counted: set it in ep or ba")
        value, own = round(value * whole.value, 9), whole.unit  # maybe part of an epoch
    if unit is None:
        unit = own if value == int(value) else TimeUnit.BATCH
    if unit is not own:
        if {unit, own} != {TimeUnit.EPOCH, TimeUnit.BATCH}:
            raise ArgumentError(f"{str(given)!r} can't be counted in {unit}: give it in {unit}")
        if not (batches := train_length(state)):
            raise ArgumentError(f"{str(given)!r} can't be counted in {unit}: the train_dataloader has no length")
        value = value * batches if unit is TimeUnit.BATCH else value / batches
    return Time(max(1, int(round(value, 9))), unit)  # rounded first, so that 0.29 of 100 is 29


def path_of(given: str | os.PathLike[str]) -> Path:
    """Return a path that a user gave; a leading `~` is the home folder, as in a shell, which expands few of them.

    Example:
        >>> path_of("~/runs") == Path.home() / "runs", path_of("./~/runs")
        (True, ...Path('~/runs'))
    """
    return Path(os.path.expanduser(given))  # noqa: PTH111  Path's own raises where there is no such home


def check_key(name: str, key: object) -> None:
    """Raise unless `key` can locate an item in a batch, see `State.batch_get_item`."""
    if type(key) is not bool and isinstance(key, (str, Integral)):
        return
    if isinstance(key, tuple) and len(key) == 2 and all(map(callable, key)):
        return
    raise ArgumentTypeError(f"{name}={key!r} has to be an index, a key or attribute name, or a pair (getter, setter)")


def item_at(batch: Any, argument: str, key: BatchKey) -> Any:
    """Return the item of a batch that an argument points to.

    Example:
        >>> item_at(("x", "y"), "target_key", "label")
        Traceback (most recent call last):
        engine_core.errors.BatchKeyError: target_key='label': a batch of type tuple ... set target_key to where it is
    """
    try:
        return get_item(batch, key)
    except BatchKeyError as error:
        raise BatchKeyError(f"{argument}={key!r}: {error}; set {argument} to where it is") from error


def check_taken(state: State, argument: str, key: BatchKey, what: Literal["inputs", "targets"]) -> None:
    """Raise unless an argument names an item that the objective takes out of the batch for the model or the loss.

    Not checked are a model's own loss, which gets the whole batch, a pair (getter, setter), which may reach into the
    item, and a batch without such items.
    """
    items = getattr(state.objective, what)
    items = items if isinstance(items, tuple) else (items,)
    if state.loss_fn is None or isinstance(key, tuple) or key in items or items[0] in ("*", "**"):
        return
    try:
        taken = [get_item(state.batch, item) for item in items]
    except BatchKeyError:  # a batch of the user's own loop
        return
    found = item_at(state.batch, argument, key)
    if not any(found is item for item in taken):
        whose = {"inputs": "the inputs of the model", "targets": "the targets of the loss"}[what]
        names = " or ".join(map(repr, items))
        raise ArgumentError(
            f"{argument}={key!r} is not item {names} of the batch, which with a loss_fn is {whose}: set "
            f"{argument}={names}, or say where it is, objective=engine_core.Objective(loss_fn, {what}={key!r})"
        )


def _check_within(name: str, number: float, value: object, interval: str, what: str) -> None:
    low, high = map(float, interval[1:-1].split(","))
    is_open = (number == low and interval[0] == "(") or (number == high and interval[-1] == ")")
    if is_open or not low <= number <= high:
        raise ArgumentError(f"{name}={value!r} has to be within {interval}: {what}")
