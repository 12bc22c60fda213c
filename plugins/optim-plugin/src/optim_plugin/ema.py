"""The exponential moving average of the weights: as a function for any loop, and as an algorithm of the engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from engine_core import AlgorithmMetadata, Event, State
from engine_core.arguments import check_flag, check_length, check_number
from engine_core.errors import ArgumentError
from engine_core.state import length_of
from engine_core.time import Interval, Time, TimeUnit

from .averages import Average, Rule
from .buffers import Buffers, check_buffers
from .weight_averaging import WeightAveraging

__all__ = ["EMA", "ema_update"]

_make_rule: Callable[[float], Rule] = get_ema_multi_avg_fn
_MEANING = "the share of the average that is kept at each update"
_DECAY = 0.999
_WARMED_UP = 10**9
"""The count of an average that was saved without one, before there was a warm-up: nothing limits its decay."""


def ema_update(
    average: Mapping[str, torch.Tensor], model: nn.Module, decay: float = 0.999, *, buffers: Buffers = "norms"
) -> None:
    """Update `average` to `decay * average + (1 - decay) * weights`, in place.

    Where the average of a buffer is not finite, it takes the buffer's value. Entries under further names of tied
    weights become equal to their average.

    Args:
        average: what `start_average(model)` returned.
        buffers: which buffers are averaged: "norms", the floating ones of normalization layers; "average", all floating
            ones; "copy", none; or a function that returns True for the name and the tensor of each to average. The
            others are copied; so are u and v of a spectral norm, integers and sparse buffers, whatever is given.

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
    Average(model, average, buffers=check_buffers(buffers), share=True).update(rule)


class EMA(WeightAveraging):
    """Evaluate with the exponential moving average of the weights.

    Source: Polyak & Juditsky 1992, Acceleration of Stochastic Approximation by Averaging; with exponential weights as
    in Tarvainen & Valpola 2017, Mean teachers are better role models, arXiv 1703.01780; the warm-up is that of
    TensorFlow's `tf.train.ExponentialMovingAverage` with `num_updates`. The average starts as the weights after
    the first batch that ends at `ema_start` or later, is updated after batches, see `ema_update`, and is in the model
    while it is evaluated: the results of an evaluation are those of the average, once it has started.

    Args:
        decay: the share of the average that is kept at each update, in [0, 1); 0.999 if neither it nor `half_life` is
            given.
        update_interval: how often it is updated, in `ba`, `ep`, `sp` or `sec`.
        half_life: instead of `decay`, the length of training after which what is in the average counts half, in the
            unit of `update_interval`: the decay is `2 ** -(update_interval / half_life)`.
        ema_start: where in training the average starts, in `ba`, `ep`, `sp`, `sec` or `dur`; until then the weights are
            evaluated as they are.
        warmup: limit the decay to `(1 + t) / (10 + t)`, where t is the number of updates before this one, so that the
            average forgets the weights that it started as.
        buffers: which buffers are averaged, see `ema_update`.

    Warns:
        UserWarning: at the start of training if more than a tenth of the average would still be its initial weights,
            those at `ema_start`, at the end.

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
        warmup: bool = True,
        buffers: Buffers = "norms",
    ) -> None:
        super().__init__(buffers)
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
        if self._start and self._start.unit is TimeUnit.DURATION:
            own = self.metadata.replace(needs=("duration", *self.metadata.needs))
            self.metadata = own  # type: ignore[misc]  # this instance's own
        self.ema_start = str(self._start)
        self.warmup = check_flag("warmup", warmup)

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
            # Else the end of the same epoch would count as an update, by weights that the average already is.
            is_early = event is Event.BATCH_END and self._interval.in_epochs
            ends_epoch = is_early and state.timestamp.batch_in_epoch == state.dataloader_len
            # Not before the first batch, which gives lazy layers, observers and other buffers their shapes.
            return self._is_started(state) and event is not Event.FIT_START and not ends_epoch
        if event is Event.BATCH_END and self._after_each:
            return True
        return self._interval.passed(self._moved_at, state.timestamp)

    def _rule(self) -> Rule:
        updates = self._count - 1
        return _make_rule(min(self._decay, (1 + updates) / (10 + updates)) if self.warmup else self._decay)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with a saved average; one saved without a count has its warm-up behind it."""
        super().load_state_dict({**state, "count": state.get("count", _WARMED_UP)} if "average" in state else state)

    def _warning(self, state: State) -> str:
        updates = _expected_updates(state, self._interval.length, self._start)
        if updates is None:
            return ""
        # With the warm-up the first update leaves a tenth, or less.
        initial = 0.1 if self.warmup and updates else self._decay**updates
        if initial <= 0.1:
            return ""
        remedies = ["warmup=True, or a smaller decay or half_life"] if updates else ["a shorter update_interval"]
        remedies += ["an earlier ema_start"] if self._start else []
        return (
            f"the average of ema, which is what is evaluated, would still be {initial:.0%} its initial weights, those "
            f"at ema_start={self.ema_start!r}, when this training ends (max_duration={str(state.max_duration)!r}). "
            f"Updates until then: {updates} (update_interval={self.update_interval!r}), with a decay of "
            f"{self._decay:.6g}. Set {', or '.join(remedies)}"
        )


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


def _expected_updates(state: State, every: Time, start: Time) -> int | None:
    """Return how many updates are left from `start` on; None if unknown, or if training ends before `start`."""
    if state.max_duration is None:
        return None
    whole, sizes, unit = Time(state.max_duration), _sizes_of_an_epoch(state.train_dataloader), every.unit

    def located(length: float, own: TimeUnit) -> float:
        """Return a position in `unit`, NaN if that is unknown."""
        if own is not unit and length:
            length *= sizes.get(unit, math.nan) / sizes.get(own, math.nan)
        length = round(length, 9)
        return math.ceil(length) if unit is TimeUnit.BATCH and math.isfinite(length) else length

    is_fraction = start.unit is TimeUnit.DURATION
    begin = located(start.value * whole.value, whole.unit) if is_fraction else located(start.value, start.unit)
    batch = sizes.get(unit, math.nan) / sizes.get(TimeUnit.BATCH, math.nan) if unit is not TimeUnit.BATCH else 1
    soon = state.timestamp.get(unit).value + (0 if math.isnan(batch) else batch)  # it starts after a batch
    first, last = max(begin, soon), located(whole.value, whole.unit)
    if not first < last:  # nor if one is NaN
        return None
    # A batch that completes several intervals makes one update.
    step = max(every.value, sizes.get(unit, 0) / sizes.get(TimeUnit.BATCH, 1))
    return int(last // step - first // step)


def _sizes_of_an_epoch(loader: Iterable[Any] | None) -> dict[TimeUnit, int]:
    """Return how long an epoch is, in each unit in which the loader says it."""
    sizes, batches, rows = {TimeUnit.EPOCH: 1}, length_of(loader), getattr(loader, "batch_size", None)
    if batches:
        sizes[TimeUnit.BATCH] = batches
        if isinstance(rows, int):
            samples = length_of(getattr(loader, "dataset", None))
            sizes[TimeUnit.SAMPLE] = batches * rows if samples is None else min(batches * rows, samples)
    return sizes
