"""Lookahead: slow weights that follow those that the optimizer trains, and from which these go on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import torch
from torch import nn

from engine_core import AlgorithmMetadata, Event, Logger, State
from engine_core.arguments import check_number, check_whole

from .averages import Average
from .weight_averaging import KeptAverage, model_of

__all__ = ["Lookahead", "lookahead_update"]


def lookahead_update(slow: Mapping[str, torch.Tensor], model: nn.Module, alpha: float = 0.8) -> None:
    """Move the slow weights the share `alpha` of the way to those of `model`, and then the model to them, in place.

    Source: Zhang et al. 2019, arXiv 1907.08610, algorithm 1: call it after every k steps. Buffers of the model stay.

    Args:
        slow: what `start_average(model)` returned before the first step.
        alpha: how far the slow weights move, in (0, 1).

    Raises:
        ArgumentError: (a ValueError) for slow weights of another model, or an `alpha` out of range.

    Example:
        >>> from optim_plugin import start_average
        >>> model = nn.Linear(1, 1)
        >>> slow = start_average(model)
        >>> nn.init.ones_(model.weight), slow["weight"].zero_()  # doctest: +ELLIPSIS
        (...)
        >>> lookahead_update(slow, model, alpha=0.25)
        >>> slow["weight"].item(), model.weight.item()
        (0.25, 0.25)
    """
    _step(Average(model, slow, buffers="copy", share=True), _check_alpha(alpha))


class Lookahead(KeptAverage):
    """After every `k` batches go back a part of the way, to the slow weights: `slow + alpha * (weights - slow)`.

    Source: Zhang et al. 2019, Lookahead Optimizer: k steps forward, 1 step back, arXiv 1907.08610. The slow weights
    begin as those of the start of training, and move to this point too. Optimizers keep their state. Buffers are left
    alone. An evaluation has the weights as they are; after a multiple of `k` batches these are the slow ones.

    Args:
        k: the batches from one step of the slow weights to the next.
        alpha: how far the slow weights move, in (0, 1).

    Example:
        >>> Lookahead(k=10, alpha=0.5).k
        10
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="lookahead",
        description="go back to slow weights after every k batches, which follow",
        events=(Event.FIT_START, Event.BATCH_END),
        tags=("slow_weights",),
        conflicts=("@slow_weights",),
        before=("@weight_averaging",),
        after=("@surgery",),
        writes=("model",),
    )

    def __init__(self, k: int = 5, alpha: float = 0.8) -> None:
        super().__init__(None)
        self.k = check_whole("k", k, "[1, inf)", "the batches from one step of the slow weights to the next")
        self.alpha = _check_alpha(alpha)

    def match(self, event: Event, state: State) -> bool:
        """At FIT_START of a run without slow weights, and after every `k` batches."""
        if event is Event.FIT_START:
            return not self._is_of(state)
        return event is Event.BATCH_END and state.timestamp.batch % self.k == 0

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Begin with the weights of now, or let both move."""
        slow = self._current(state)
        if slow is None:
            self._hold(Average(model_of(state), buffers=None), 1, state)
        elif event is Event.BATCH_END:
            _step(slow, self.alpha)


def _check_alpha(alpha: object) -> float:
    return check_number("alpha", alpha, "(0, 1)", "how far the slow weights move to the trained ones")


def _step(slow: Average, alpha: float) -> None:
    """Move both."""
    slow.update(partial(_move, alpha))
    slow.put_into_model()


def _move(alpha: float, slow: list[torch.Tensor], weights: list[torch.Tensor], _: int) -> None:
    torch._foreach_lerp_(slow, weights, alpha)
