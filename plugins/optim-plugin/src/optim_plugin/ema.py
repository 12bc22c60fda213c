"""The exponential moving average of the weights: as a function for any loop, and as an algorithm of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from engine_core import AlgorithmMetadata, Event, State
from engine_core.arguments import check_length, check_number
from engine_core.errors import ArgumentError
from engine_core.time import Interval, Time

from .averages import Average, Rule
from .weight_averaging import WeightAveraging

__all__ = ["EMA", "ema_update"]

_make_rule: Callable[[float], Rule] = get_ema_multi_avg_fn
_MEANING = "the share of the average that is kept at each update"
_DECAY = 0.999


def ema_update(average: Mapping[str, torch.Tensor], model: nn.Module, decay: float = 0.999) -> None:
    """Update `average` to `decay * average + (1 - decay) * weights`, in place.

    Float buffers are averaged as parameters are; integers and sparse ones are copied. Where a buffer's average is not
    finite, as in a mask of -inf, it takes the buffer's value. Entries under further names of tied weights become equal
    to their average.

    Args:
        average: what `start_average(model)` returned.

    Raises:
        ArgumentError: (a ValueError) for an average of another model, a lazy or sparse parameter, or a `decay`
            outside [0, 1).
        ArgumentTypeError: (a TypeError) for anything but an average.

    Example:
        >>> from optim_plugin import start_average
        >>> model = nn.Linear(1, 1)
        >>> average = start_average(model)
        >>> nn.init.ones_(model.weight), average["weight"].zero_()  # doctest: +ELLIPSIS
        (...)
        >>> ema_update(average, model, decay=0.75)
        >>> average["weight"].item()
        0.25
    """
    rule = _make_rule(check_number("decay", decay, "[0, 1)", _MEANING))
    Average(model, average, share=True).update(rule)


class EMA(WeightAveraging):
    """Evaluate with the exponential moving average of the weights.

    Source: Polyak & Juditsky 1992, Acceleration of Stochastic Approximation by Averaging; with exponential weights as
    in Tarvainen & Valpola 2017, Mean teachers are better role models, arXiv 1703.01780. The average starts as the
    weights at `ema_start`, is updated after batches, see `ema_update`, and is in the model while it is evaluated.

    Args:
        decay: the share of the average that is kept at each update, in [0, 1); 0.999 if neither it nor `half_life` is
            given.
        update_interval: how often it is updated, in `ba`, `ep`, `sp` or `sec`.
        half_life: instead of `decay`, the length of training after which what is in the average counts half, in the
            unit of `update_interval`: the decay is `2 ** -(update_interval / half_life)`.
        ema_start: where in training the average starts, in `ba`, `ep`, `sp`, `sec` or `dur`; until then the weights are
            evaluated as they are.

    Example:
        >>> EMA(decay=0.99, update_interval="10ba").decay
        0.99
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="ema",
        description="evaluate with the exponential moving average of the weights",
        events=(Event.FIT_START, Event.BATCH_END, Event.EPOCH_END, Event.EVAL_START, Event.EVAL_END),
        tags=("weight_averaging",),
        conflicts=("@weight_averaging",),
        writes=("model",),
    )

    def __init__(
        self,
        decay: float | None = None,
        update_interval: str | Time = "1ba",
        *,
        half_life: str | Time | None = None,
        ema_start: str | Time = "0ba",
    ) -> None:
        super().__init__()
        self._interval = Interval(update_interval, "update_interval")
        self.update_interval = str(self._interval.length)
        self._after_each = self.update_interval == "1ba"  # needs no clock, which a custom loop may not have
        if half_life is None:
            self.decay: float | None = check_number("decay", _DECAY if decay is None else decay, "[0, 1)", _MEANING)
            self.half_life, self._decay = None, self.decay
        else:
            halved = _half_life(half_life, self._interval.length, decay)
            self.decay, self.half_life, self._decay = None, str(halved), 2 ** -(self._interval.length / halved)
        self._start = check_length("ema_start", ema_start)
        self.ema_start = str(self._start)

    def may_rest(self, state: State) -> bool:
        """A fit may end before `ema_start`."""
        return not self._is_started(state)

    def validate(self, state: State) -> None:
        """Raise if `ema_start` is a fraction of a training whose length is not known."""
        self._is_started(state)

    def _is_started(self, state: State) -> bool:
        return not self._start or state.get_progress(self._start) >= 1

    def _is_due(self, event: Event, state: State) -> bool:
        if not self._is_of(state):
            return self._is_started(state)
        if event is Event.BATCH_END and self._after_each:
            return True
        return self._interval.passed(self._moved_at, state.timestamp)

    def _rule(self) -> Rule:
        return _make_rule(self._decay)

    def _when(self) -> str:
        return f"it starts at {self.ema_start}" if self._start else "it starts when fit does"


def _half_life(given: str | Time, interval: Time, decay: object) -> Time:
    """Return the half-life, if nothing else says how quickly the average forgets, and it is in the interval's unit."""
    halved = Interval(given, "half_life").length
    if decay is not None:
        raise ArgumentError(f"decay={decay!r} and half_life={str(halved)!r} say the same: give one of the two")
    if halved.unit is not interval.unit:
        raise ArgumentError(
            f"half_life={str(halved)!r} and update_interval={str(interval)!r} have different units: give both in one, "
            f"such as update_interval='1{halved.unit}'"
        )
    return halved
