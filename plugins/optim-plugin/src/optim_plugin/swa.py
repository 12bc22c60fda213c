"""The equal mean of the weights late in training: as a function for any loop, and as an algorithm of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim.swa_utils import get_swa_multi_avg_fn

from engine_core import AlgorithmMetadata, Event, Logger, State
from engine_core.arguments import check_number, check_whole
from engine_core.errors import ArgumentError
from engine_core.messages import warn
from engine_core.time import Interval, Time, TimeUnit

from .averages import Average, Rule
from .weight_averaging import WeightAveraging

__all__ = ["SWA", "swa_update"]

_make_rule: Callable[[], Rule] = get_swa_multi_avg_fn


def swa_update(average: Mapping[str, torch.Tensor], model: nn.Module, count: int) -> None:
    """Add the weights of `model` to the equal mean `average`, in place.

    It becomes `average + (weights - average) / (count + 1)`; buffers and tied weights as in `ema_update`.

    Args:
        average: what `start_average(model)` returned.
        count: how many weights it is the mean of already, at least 1.

    Raises:
        ArgumentError: (a ValueError) for an average of another model, a lazy or sparse parameter, or a `count` below 1.
        ArgumentTypeError: (a TypeError) for anything but an average.

    Example:
        >>> from optim_plugin import start_average
        >>> model = nn.Linear(1, 1)
        >>> average = start_average(model)
        >>> nn.init.ones_(model.weight), average["weight"].zero_()  # doctest: +ELLIPSIS
        (...)
        >>> swa_update(average, model, count=3)
        >>> average["weight"].item()
        0.25
    """
    Average(model, average, share=True).update(_make_rule(), _check_count(count))


def _check_count(count: object) -> int:
    return check_whole("count", count, "[1, inf)", "how many weights the average is the mean of already")


class SWA(WeightAveraging):
    """Evaluate with the equal mean of the weights at the ends of epochs late in training.

    Source: Izmailov et al. 2018, Averaging Weights Leads to Wider Optima and Better Generalization, arXiv 1803.05407.
    The learning rate of that phase, constant or cyclical, is up to the user's scheduler. Buffers such as BatchNorm's
    statistics are averaged too; `torch.optim.swa_utils.update_bn` recomputes them.

    Args:
        start: the fraction of the whole training after which weights are averaged, in [0, 1).
        update_interval: how often, in `ep` or `ba`.

    Warns:
        UserWarning: at the end of training if no interval ended at `start` or later.

    Example:
        >>> SWA(start=0.75, update_interval="2ep").start
        0.75
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="swa",
        description="evaluate with the mean of the weights late in training",
        events=(
            Event.FIT_START,
            Event.BATCH_END,
            Event.EPOCH_END,
            Event.EVAL_START,
            Event.EVAL_END,
            Event.FIT_END,
        ),
        tags=("weight_averaging",),
        conflicts=("@weight_averaging",),
        writes=("model",),
    )

    def __init__(self, start: float = 0.7, update_interval: str | Time = "1ep") -> None:
        super().__init__()
        self.start = check_number("start", start, "[0, 1)", "the fraction of training after which weights count")
        length = Interval(update_interval, "update_interval").length
        if length.unit not in (TimeUnit.EPOCH, TimeUnit.BATCH):
            raise ArgumentError(
                f"update_interval={str(length)!r}: weights are averaged after whole epochs (ep) or batches (ba)"
            )
        self.update_interval = str(length)
        self._every, self._at = length, Event.EPOCH_END if length.unit is TimeUnit.EPOCH else Event.BATCH_END

    def validate(self, state: State) -> None:
        """Raise if the length of training is not known."""
        if state.max_duration is None:
            raise ArgumentError(
                f"max_duration is not known, so start={self.start} can't be located in the training: set max_duration"
            )

    def match(self, event: Event, state: State) -> bool:
        """As the base class does, and at FIT_END if training ends without an average."""
        if event is Event.FIT_END:
            elapsed = state.get_elapsed_duration()
            return not self._loaded and not self._is_of(state) and elapsed is not None and elapsed.value >= 1.0
        return super().match(event, state)

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        """As the base class does, and warn if training ends without an average."""
        if event is Event.FIT_END:
            warn(
                f"swa averaged nothing: {self._when()}, but max_duration={str(state.max_duration)!r} contains none; "
                "the weights were evaluated as they are. Lower start or update_interval",
                UserWarning,
            )
            return
        super().apply(event, state, logger)

    def _is_due(self, event: Event, state: State) -> bool:
        if event is not self._at or state.timestamp.get(self._every.unit).value % self._every.value:
            return False
        elapsed = state.get_elapsed_duration()
        return elapsed is not None and elapsed.value >= self.start

    def _rule(self) -> Rule:
        return _make_rule()

    def _saved(self) -> dict[str, Any]:
        return {"count": self._count}

    def _check_saved(self, saved: Mapping[str, Any]) -> None:
        _check_count(saved["count"])

    def _when(self) -> str:
        return f"it starts with the first {self._every} that ends at {self.start} of the training or later"
