"""When a step reuses what its scoring forward computed, and what happens if it can't."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from engine_core import Event
from engine_core.errors import ArgumentError
from engine_core.messages import warn

from .outputs import LinearOutputs
from .soundness import unsound

__all__ = ["Reuse"]

T = TypeVar("T")


class Reuse:
    """Reuse the outputs of a scoring forward in the next training forward.

    Args:
        is_demanded: raise if that is not sound, instead of warning and turning reuse off.
    """

    def __init__(self, *, is_demanded: bool) -> None:
        self._is_demanded = is_demanded
        self._is_off = False
        self._outputs = LinearOutputs()
        self.awaited: Event | None = None
        """The event of the step at which there is something to do; after the step None, if the kept rows came."""
        self._numbers = 0, 0
        self._taken: Counter[tuple[int, int]] = Counter()
        """In how many steps something was reused, for each pair of row counts."""
        self._left: set[tuple[int, int]] = set()
        """The pairs of row counts for which nothing is reused."""

    def begin_fit(self) -> None:
        """Forget the step that an exception ended."""
        self._outputs.end()
        self.awaited = None

    def check(self, model: Any, precision: str) -> None:
        """Raise if reuse is demanded but, judging by the model and the run's precision, not sound."""
        if self._is_demanded:
            self._decline_if(_why_not(model, precision))

    def recorded(self, block: Callable[[], T], model: Any, n: int, precision: str) -> T:
        """Return what a block returns, with the outputs of the linear layers of `model` recorded meanwhile.

        Args:
            n: the rows of the batch.
            precision: that of the run.
        """
        if self.awaited is not None:
            self._decline(
                "the training forward did not get all kept rows at once, as with microbatches or a second "
                "SelectiveBackprop, or this loop does not fire BEFORE_FORWARD and AFTER_FORWARD around it"
            )
        if not self._is_off:
            self._decline_if(_why_not(model, precision))
        if self._is_off:
            return block()
        self._numbers = n, 0
        with self._outputs.recording(model, n):
            result = block()
        self._judge()
        return result

    def keep(self, rows: torch.Tensor) -> None:
        """Note which rows (k,) the step trains on."""
        self._numbers = self._numbers[0], len(rows)
        if self._is_off or self._outputs.fault is not None or self._numbers in self._left:
            self._outputs.end()
        else:
            self._outputs.keep(rows)
            self.awaited = Event.BEFORE_FORWARD

    def react(self, event: Event) -> None:
        """Start reuse at BEFORE_FORWARD, and end it at AFTER_FORWARD."""
        if event is Event.BEFORE_FORWARD:
            self.awaited = Event.AFTER_FORWARD
            self._outputs.replay()
            return
        self._outputs.end()
        has_come = self._outputs.reused or self._outputs.fault or self._outputs.rounding
        self.awaited = None if has_come else Event.BEFORE_FORWARD
        self._judge()

    def _judge(self) -> None:
        """Decline if nothing can be reused, unless only unusual row counts are affected.

        For the few rows of an epoch's last batch, layers may round differently; these steps are exact all the same.
        """
        outputs, numbers = self._outputs, self._numbers
        reason = outputs.fault or (None if outputs.reused else outputs.rounding)
        if reason is None:
            self._taken[numbers] += outputs.reused > 0
        elif self._taken[numbers] < max(self._taken.values(), default=0):
            self._left.add(numbers)
        else:
            self._decline(reason, of_rank=True)

    def _decline_if(self, reason: str | None) -> None:
        if reason is not None:
            self._decline(reason)

    def _decline(self, reason: str, *, of_rank: bool = False) -> None:
        """Raise, or continue without reuse; what the forward of a rank's own rows shows may be `of_rank` alone."""
        message = f"selective_backprop can't reuse what its scoring forward computed: {reason}"
        self.begin_fit()
        if self._is_demanded:
            raise ArgumentError(f"{message}; or set reuse='off'")
        if not self._is_off:
            self._is_off = True
            warn(f"{message}; reuse='auto' continues without it", UserWarning, of_rank=of_rank)


def _why_not(model: Any, precision: str) -> str | None:
    if precision != "fp32":
        return f"autocast is on, by precision={precision!r}: outputs are reused only in unchanged precision"
    return unsound(model) if isinstance(model, nn.Module) else f"the model is a {type(model).__name__}"
