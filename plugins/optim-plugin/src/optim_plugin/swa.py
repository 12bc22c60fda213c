"""The equal mean of the weights late in training: as a function for any loop, and as an algorithm of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim.swa_utils import get_swa_multi_avg_fn

from engine_core import AlgorithmMetadata, Event, Logger, State
from engine_core.arguments import check_number
from engine_core.errors import ArgumentError
from engine_core.messages import warn
from engine_core.time import Interval, Time, TimeUnit

from .annealing import Annealing, check_annealing
from .averages import Average, Rule, in_use
from .buffers import Buffers, check_buffers
from .statistics import check_loader, recompute_statistics, trained_norms
from .weight_averaging import WeightAveraging, check_count, model_of

__all__ = ["SWA", "swa_update"]

_make_rule: Callable[[], Rule] = get_swa_multi_avg_fn
_ANNEAL = "10ba"


def swa_update(
    average: Mapping[str, torch.Tensor], model: nn.Module, count: int, *, buffers: Buffers = "norms"
) -> None:
    """Add the weights of `model` to the equal mean `average`, in place.

    It becomes `average + (weights - average) / (count + 1)`; tied weights as in `ema_update`.

    Args:
        average: what `start_average(model)` returned.
        count: how many weights it is the mean of already, at least 1.
        buffers: which buffers are averaged, see `ema_update`.

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
    Average(model, average, buffers=check_buffers(buffers), share=True).update(_make_rule(), check_count(count))


class SWA(WeightAveraging):
    """Evaluate with the equal mean of the weights at the ends of epochs late in training.

    Source: Izmailov et al. 2018, Averaging Weights Leads to Wider Optima and Better Generalization, arXiv 1803.05407.
    The learning rate of that phase is `swa_lr`, or up to the user's scheduler. BatchNorm's statistics are averaged
    too, or computed again with `update_bn`. The results of an evaluation are those of the
    mean, once it has started.

    Args:
        start: the fraction of the whole training after which weights are averaged, in [0, 1).
        update_interval: how often, in `ep` or `ba`.
        swa_lr: the learning rate that the optimizer's own is annealed to from `start` on, linearly, in place of the
            schedulers, which are not stepped any more; None leaves it alone.
        anneal: how long that takes, in `ep` or `ba`.
        buffers: which buffers are averaged, see `ema_update`.
        update_bn: a loader; one pass over it computes BatchNorm's statistics for the mean, before an evaluation that
            uses it and at the end of `fit`, each time if the mean has changed since. Its batches are those of training,
            with or without targets.

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
        writes=("model", "optimizers"),
        needs=("duration",),
    )

    def __init__(
        self,
        start: float = 0.7,
        update_interval: str | Time = "1ep",
        *,
        swa_lr: float | None = None,
        anneal: str | Time = _ANNEAL,
        buffers: Buffers = "norms",
        update_bn: Iterable[Any] | None = None,
    ) -> None:
        super().__init__(buffers)
        self.start = check_number("start", start, "[0, 1)", "the fraction of training after which weights count")
        length = Interval(update_interval, "update_interval").length
        if length.unit not in (TimeUnit.EPOCH, TimeUnit.BATCH):
            raise ArgumentError(
                f"update_interval={str(length)!r}: weights are averaged after whole epochs (ep) or batches (ba)"
            )
        self.update_interval = str(length)
        self._every, self._at = length, Event.EPOCH_END if length.unit is TimeUnit.EPOCH else Event.BATCH_END
        self._annealing = None if swa_lr is None else Annealing(swa_lr, anneal)
        self.swa_lr, self.anneal = swa_lr, str(anneal)
        if swa_lr is None and self.anneal != _ANNEAL:
            raise ArgumentError(f"anneal={self.anneal!r} has no learning rate to reach: give swa_lr too")
        self.update_bn = check_loader(update_bn)
        self._outdated: list[str] = []  # the BatchNorm layers whose statistics are not those of the mean
        if update_bn is not None:  # a pass over sharded weights leaves whole ones behind
            own = self.metadata.replace(needs=("whole_weights", *self.metadata.needs))
            self.metadata = own  # type: ignore[misc]  # this instance's own

    def validate(self, state: State) -> None:
        """Raise if the length of training is not known, or `swa_lr` has to be that of several optimizers."""
        if self._annealing is not None:
            self._annealing.check(state)
        if state.max_duration is None:
            raise ArgumentError(
                f"max_duration is not known, so start={self.start} can't be located in the training: set max_duration"
            )

    def match(self, event: Event, state: State) -> bool:
        """As the base class does, while rates change, and at FIT_END if statistics or the whole average are missing."""
        if event is Event.FIT_END:
            if self._is_of(state):
                return self.update_bn is not None and bool(self._outdated)
            elapsed = state.get_elapsed_duration()
            return not self._loaded and elapsed is not None and elapsed.value >= 1.0
        return self._anneals(event, state) or super().match(event, state)

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Set the learning rates, do what the base class does, and warn if training ends without an average."""
        average = self._current(state)
        if average is not None and event in (Event.EVAL_START, Event.FIT_END):
            self._update_statistics(average, state)
        if event is Event.FIT_END and average is None:
            warn(
                f"swa averaged nothing: it starts with the first {self._every} that ends at {self.start} of the "
                f"training or later, but max_duration={str(state.max_duration)!r} contains none; "
                "the weights were evaluated as they are. Lower start or update_interval",
                UserWarning,
            )
            return
        if self._annealing is not None and self._anneals(event, state):
            if self._annealing.is_of(state) or self._is_late(state):
                self._annealing.advance(state)
            else:
                self._annealing.forget()  # it was another run's
        if super().match(event, state):
            super().apply(event, state, logger)
        if self.update_bn is not None and self._is_due(event, state):
            self._outdated = trained_norms(model_of(state))

    def _update_statistics(self, average: Average, state: State) -> None:
        """Compute BatchNorm's statistics for the mean, unless they are."""
        if self.update_bn is None or not self._outdated:
            return
        model: Any = model_of(state)
        forward = partial(state.objective.predict, model)
        with in_use(average):
            own = recompute_statistics(model, self._outdated, self.update_bn, forward)
        of_ranks = state.ranks.each(own)
        average.take({name: torch.stack([each[name] for each in of_ranks]).mean(0) for name in own})
        self._outdated = []

    def state_dict(self) -> dict[str, Any]:
        """Return the average and what belongs to it, and how far the learning rates are."""
        way = None if self._annealing is None else self._annealing.state_dict()
        average = super().state_dict()
        outdated = {"outdated": list(self._outdated)} if average and self._outdated else {}
        return {**average, **outdated, **({"annealing": way} if way else {})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with a saved average and learning rates, in the next run that fits or evaluates; see `EMA`."""
        own = ("annealing", "outdated")
        way = state.get("annealing", {})
        check_annealing(way)
        super().load_state_dict({name: value for name, value in state.items() if name not in own})
        self._outdated = list(state.get("outdated", ()))
        if self._annealing is not None:
            self._annealing.load_state_dict(way)

    def _anneals(self, event: Event, state: State) -> bool:
        """Are the learning rates to be set now?"""
        if self._annealing is None or event not in (Event.FIT_START, Event.BATCH_END, Event.EPOCH_END):
            return False
        if self._annealing.is_of(state):
            return self._annealing.is_due(state)
        return self._annealing.has_begun or self._is_late(state)

    def _is_late(self, state: State) -> bool:
        elapsed = state.get_elapsed_duration()
        return elapsed is not None and elapsed.value >= self.start

    def _is_due(self, event: Event, state: State) -> bool:
        if event is not self._at or state.timestamp.get(self._every.unit).value % self._every.value:
            return False
        return self._is_late(state)

    def _rule(self) -> Rule:
        return _make_rule()
