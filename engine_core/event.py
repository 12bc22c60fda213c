"""The named moments of the training loop. A leaf: it knows nothing of its listeners."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from .errors import ArgumentError, ArgumentTypeError, did_you_mean

__all__ = ["HOOK_API", "Event"]

HOOK_API = 1
"""Number of the contract between the core and its plugins: these events, their order and their arguments."""


class Event(str, Enum):
    """A moment of the training loop; its value is also the name of the hook.

    Example:
        >>> Event("BEFORE_LOSS") is Event("before_loss") is Event.BEFORE_LOSS
        True
        >>> Event("befor_loss")
        Traceback (most recent call last):
        engine_core.errors.ArgumentError: 'befor_loss' is not an event; did you mean 'before_loss'?
    """

    INIT = "init"
    AFTER_LOAD = "after_load"
    FIT_START = "fit_start"
    EPOCH_START = "epoch_start"
    BEFORE_DATALOADER = "before_dataloader"
    AFTER_DATALOADER = "after_dataloader"
    BATCH_START = "batch_start"
    BEFORE_TRAIN_BATCH = "before_train_batch"
    BEFORE_FORWARD = "before_forward"
    AFTER_FORWARD = "after_forward"
    BEFORE_LOSS = "before_loss"
    AFTER_LOSS = "after_loss"
    BEFORE_BACKWARD = "before_backward"
    AFTER_BACKWARD = "after_backward"
    AFTER_TRAIN_BATCH = "after_train_batch"
    BATCH_END = "batch_end"
    BATCH_CHECKPOINT = "batch_checkpoint"
    EPOCH_END = "epoch_end"
    EPOCH_CHECKPOINT = "epoch_checkpoint"
    FIT_END = "fit_end"
    EVAL_START = "eval_start"
    EVAL_BATCH_START = "eval_batch_start"
    EVAL_BEFORE_FORWARD = "eval_before_forward"
    EVAL_AFTER_FORWARD = "eval_after_forward"
    EVAL_BATCH_END = "eval_batch_end"
    EVAL_END = "eval_end"

    def __str__(self) -> str:
        return self.value

    # Equal to its value, so it has its hash; Enum's own is a function in Python, which an event would pay each time.
    __hash__ = str.__hash__

    @classmethod
    def _missing_(cls, value: object) -> Event:
        if not isinstance(value, str):
            raise ArgumentTypeError(f"an event is named by a string or an Event, not by {value!r}")
        for event in cls:
            if event.value == value.lower():
                return event
        raise ArgumentError(f"{value!r} is not an event{did_you_mean(value, [event.value for event in cls])}")

    @property
    def canonical_name(self) -> str:
        """The name without its before/after, start/end marker, `epoch` for EPOCH_START and EPOCH_END."""
        return _HALVES[self].pair

    @property
    def partner(self) -> Event | None:
        """The other half of the pair, if there is one."""
        return _HALVES[self].partner

    @property
    def is_before_event(self) -> bool:
        """Is this the opening half (BEFORE or START) of a pair?"""
        return _HALVES[self].opens is True

    @property
    def is_after_event(self) -> bool:
        """Is this the closing half (AFTER or END) of a pair?"""
        return _HALVES[self].opens is False

    @property
    def is_undo(self) -> bool:
        """Is this the AFTER half of a before/after pair, where algorithms undo in reverse what they did?"""
        return _HALVES[self].undoes

    @property
    def is_eval(self) -> bool:
        """Is this fired by evaluation?"""
        return self.startswith("eval_")


class _Half(NamedTuple):
    pair: str
    partner: Event | None
    opens: bool | None
    undoes: bool


_OTHER = {"before": "after", "after": "before", "start": "end", "end": "start"}


def _half_of(event: Event) -> _Half:
    """Read the half off the name: a word such as `before`, and an event with the other word in its place."""
    words = event.value.split("_")
    other = "_".join(_OTHER.get(word, word) for word in words)
    partner = next((each for each in Event if each.value == other and each is not event), None)
    mark = next((word for word in words if word in _OTHER), "")
    opens = mark in ("before", "start") if partner else None
    return _Half("_".join(word for word in words if word != mark), partner, opens, bool(partner) and mark == "after")


_HALVES = {event: _half_of(event) for event in Event}


def events_between(first: Event, last: Event) -> list[Event]:
    """Return the events from the first to the last, as they come in a step."""
    events = [*Event]
    return events[events.index(first) : events.index(last) + 1]
