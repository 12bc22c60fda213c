"""Latest weight averaging: evaluate with the mean of the last few weights, taken at regular intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from engine_core import AlgorithmMetadata, Event, State
from engine_core.arguments import check_interval, check_whole
from engine_core.errors import ArgumentError
from engine_core.time import Time, TimeUnit

from .averages import Average, check_tensors
from .buffers import Buffers, check_buffers
from .weight_averaging import WeightAveraging, model_of

__all__ = ["LAWA", "lawa_mean"]


def lawa_mean(
    model: nn.Module, latest: Sequence[Mapping[str, torch.Tensor]], *, buffers: Buffers = "norms"
) -> dict[str, torch.Tensor]:
    """Return the equal mean of weights of `model` that were kept before, by name.

    Args:
        latest: what `start_average(model)` returned at the ends of the last intervals.
        buffers: which buffers are averaged, see `ema_update`; others are those of the model now.

    Raises:
        ArgumentError: (a ValueError) for weights of another model, or none.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> lawa_mean(model, [{"weight": torch.tensor([[1.0]])}, {"weight": torch.tensor([[2.0]])}])
        {'weight': tensor([[1.5000]])}
    """
    if not latest:
        raise ArgumentError("latest=[] has no weights to take the mean of: keep start_average(model) at least once")
    mean = Average(model, buffers=check_buffers(buffers))
    mean.take_mean([Average(model, each, buffers=buffers) for each in latest])
    return mean.copies()


class LAWA(WeightAveraging):
    """Evaluate with the equal mean of the weights at the ends of the last `window` intervals.

    Source: Kaddour 2022, Stop Wasting My Time! Saving Days of ImageNet and BERT Training with Latest Weight Averaging,
    arXiv 2209.14981, where the interval is an epoch and the window 6. By default the mean is of the last hundredth of
    what has been trained, at any time. Until a `window` is full it is of fewer weights.

    Args:
        interval: how long from one to the next, in `ba`, `ep`, `sp` or `sec`, or in `dur`: a fraction of the training.
        window: how many are kept, at least 2: so many copies of the weights, and the mean.
        buffers: which buffers are averaged, see `ema_update`.

    Example:
        >>> LAWA(interval="1ep", window=6).window
        6
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="lawa",
        description="evaluate with the mean of the weights at the ends of the last intervals",
        events=(Event.FIT_START, Event.BATCH_END, Event.EPOCH_END, Event.EVAL_START, Event.EVAL_END),
        tags=("weight_averaging",),
        conflicts=("@weight_averaging", "@growth"),  # weights that are kept lack those that join
        writes=("model",),
    )

    def __init__(self, interval: str | Time = "0.002dur", window: int = 5, *, buffers: Buffers = "norms") -> None:
        super().__init__(buffers)
        self._interval = check_interval("interval", interval)
        self.interval = str(self._interval)
        self.window = check_whole("window", window, "[2, inf)", "of how many weights the mean is")
        self._kept: list[Average] = []
        self._intervals = 0  # that were complete when the last weights were kept
        if self._interval.unit is TimeUnit.DURATION:
            own = self.metadata.replace(needs=("duration", *self.metadata.needs))
            self.metadata = own  # type: ignore[misc]  # this instance's own

    def may_rest(self, state: State) -> bool:
        """A training may be shorter than the interval."""
        return self._complete(state) == 0

    def validate(self, state: State) -> None:
        """Raise if the interval is a fraction of a training whose length is not known."""
        self._complete(state)

    def _complete(self, state: State) -> int:
        """Return how many intervals of training are complete."""
        return math.floor(round(state.get_progress(self._interval), 9))

    def _is_due(self, event: Event, state: State) -> bool:
        if event not in (Event.BATCH_END, Event.EPOCH_END):
            return False
        known = self._intervals if self._loaded or self._is_of(state) else 0
        return self._complete(state) != known

    def _next(self, average: Average | None, state: State) -> Average:
        kept = [] if average is None else self._kept
        now, mean = (Average(model_of(state), buffers=self.buffers) for _ in range(2))
        self._kept, self._intervals = [*kept, now][-self.window :], self._complete(state)
        mean.take_mean(self._kept)
        return mean

    def _current(self, state: State) -> Average | None:
        for kept in self._loaded.pop("kept", ()):
            self._kept.append(Average(model_of(state), kept, buffers=self.buffers))
        return super()._current(state)

    def state_dict(self) -> dict[str, Any]:
        """Return the mean, and the weights that it is of."""
        own = super().state_dict()
        if not own:
            return {}
        kept = self._loaded["kept"] if self._loaded else [each.copies() for each in self._kept]
        return {**own, "kept": kept, "intervals": self._intervals}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with saved weights, in the next run that fits or evaluates; see `EMA`."""
        own = ("kept", "intervals")
        if missing := [name for name in own if state and name not in state]:
            raise ArgumentError(f"the state of lawa has no {missing[0]!r}: give what its state_dict() returned")
        for kept in state.get("kept", ()):
            check_tensors(kept)
        super().load_state_dict({name: value for name, value in state.items() if name not in own})
        self._kept, self._intervals = [], state.get("intervals", 0)
        if state:
            self._loaded["kept"] = list(state["kept"])
