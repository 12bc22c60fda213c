"""When a step takes over what its scoring forward has computed, and what is said where it can't. Knows no score."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from engine_core import Event
from engine_core.batch import count_rows
from engine_core.errors import ArgumentError

from .outputs import LinearOutputs
from .soundness import unsound

__all__ = ["Reuse"]


class Reuse:
    """Takes the outputs of a scoring forward over into the next forward that trains.

    Args:
        is_demanded: raise where that is not sound, instead of going on without after a warning.
    """

    def __init__(self, *, is_demanded: bool) -> None:
        self._is_demanded = is_demanded
        self._is_off = False
        self._outputs = LinearOutputs()
        self.awaited: Event | None = None
        """At which event of the step there is something to do; after the step None, if the kept rows came."""
        self._numbers = 0, 0
        self._taken: Counter[tuple[int, int]] = Counter()
        """In how many steps something was taken over, for each two numbers of rows."""
        self._left: set[tuple[int, int]] = set()
        """The numbers of rows for which nothing is."""

    def begin_fit(self) -> None:
        """Forget the step that an exception has ended."""
        self._outputs.end()
        self.awaited = None

    def check(self, model: Any, precision: str) -> None:
        """Raise if it is demanded and a look at the model, and the run's precision, tells that it is not sound."""
        if self._is_demanded:
            self._tell(_why_not(model, precision))

    @contextmanager
    def recording(self, model: Any, batch: Any, precision: str) -> Iterator[None]:
        """Record what the linear layers of `model` give in a run of that precision."""
        if self.awaited is not None:
            self._decline(
                "the training forward did not get the kept rows at once, as with microbatches or a second "
                "SelectiveBackprop, or this loop does not fire BEFORE_FORWARD and AFTER_FORWARD around it"
            )
        if not self._is_off:
            self._tell(_why_not(model, precision))
        if self._is_off:
            yield
            return
        n = count_rows(batch)
        self._numbers = n, 0
        with self._outputs.recording(model, n):
            yield
        self._judge()

    def keep(self, rows: torch.Tensor) -> None:
        """Hear which rows (k,) the step trains on."""
        self._numbers = self._numbers[0], len(rows)
        if self._is_off or self._outputs.fault is not None or self._numbers in self._left:
            self._outputs.end()
        else:
            self._outputs.keep(rows)
            self.awaited = Event.BEFORE_FORWARD

    def react(self, event: Event) -> None:
        """Begin to take over at BEFORE_FORWARD, and end at AFTER_FORWARD."""
        if event is Event.BEFORE_FORWARD:
            self._outputs.replay()
            self.awaited = Event.AFTER_FORWARD
            return
        self._outputs.end()
        has_come = self._outputs.reused or self._outputs.fault or self._outputs.rounding
        self.awaited = None if has_come else Event.BEFORE_FORWARD
        self._judge()

    def _judge(self) -> None:
        """Tell why nothing can be taken over, unless it is for others than the usual numbers of rows.

        For the few rows of an epoch's last batch layers may round otherwise; these steps are exact all the same.
        """
        outputs, numbers = self._outputs, self._numbers
        reason = outputs.fault or (None if outputs.reused else outputs.rounding)
        if reason is None:
            self._taken[numbers] += outputs.reused > 0
        elif self._taken[numbers] < max(self._taken.values(), default=0):
            self._left.add(numbers)
        else:
            self._decline(reason)

    def _tell(self, reason: str | None) -> None:
        if reason is not None:
            self._decline(reason)

    def _decline(self, reason: str) -> None:
        message = f"selective_backprop can't use what its scoring forward computed again: {reason}"
        self.begin_fit()
        if self._is_demanded:
            raise ArgumentError(f"{message}; or set reuse='off'")
        if not self._is_off:
            self._is_off = True
            warnings.warn(f"{message}; reuse='auto' goes on without", stacklevel=2)


def _why_not(model: Any, precision: str) -> str | None:
    if precision != "fp32":
        return f"autocast is on, by precision={precision!r}: outputs are used again in unchanged precision only"
    return unsound(model) if isinstance(model, nn.Module) else f"the model is a {type(model).__name__}"
