"""Learning rates on a straight line to a last one, from some point of a run on: `Annealing`."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from engine_core import State
from engine_core.arguments import check_number, check_whole
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.time import Interval, Time, TimeUnit

__all__ = ["Annealing", "anneal_rates", "check_annealing"]


def anneal_rates(optimizer: torch.optim.Optimizer, first: Sequence[float], last: float, done: float) -> None:
    """Set the learning rate of each parameter group to `(1 - done) * first + done * last`.

    Args:
        first: the rates at the start, one for each group; groups that joined later keep theirs.
        last: the rate at the end, of all groups.
        done: how much of the way is done, in [0, 1].

    Example:
        >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
        >>> anneal_rates(optimizer, [0.5], last=0.1, done=0.25)
        >>> optimizer.param_groups[0]["lr"]
        0.4
    """
    for group, rate in zip(optimizer.param_groups, first, strict=False):
        now = (1 - done) * rate + done * last
        if isinstance(group["lr"], torch.Tensor):  # which a compiled step reads
            group["lr"].fill_(now)
        else:
            group["lr"] = now


class Annealing:
    """The way of a run's learning rates to a last one; the run's schedulers rest from its beginning on.

    Args:
        last: the learning rate at the end.
        length: how long it takes, in `ep` or `ba`.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for anything else.
    """

    def __init__(self, last: float, length: Time | str) -> None:
        self.last = check_number("swa_lr", last, "(0, inf)", "a learning rate, such as 0.05")
        self.length = Interval(length, "anneal").length
        if self.length.unit not in (TimeUnit.EPOCH, TimeUnit.BATCH):
            raise ArgumentError(
                f"anneal={str(self.length)!r}: learning rates change after whole epochs (ep) or batches (ba)"
            )
        self._begun = 0
        self._first: list[float] = []
        self._run: weakref.ref[State] | None = None

    @property
    def has_begun(self) -> bool:
        """Has it begun in some run?"""
        return bool(self._first)

    def is_of(self, state: State) -> bool:
        """Has it begun in this run, or been loaded for the next one?"""
        return self.has_begun and (self._run is None or self._run() is state)

    def is_due(self, state: State) -> bool:
        """Are there rates to set at this position, or schedulers to stop?"""
        return not state.loop.schedulers_paused or self._passed(state) <= self.length.value

    def check(self, state: State) -> torch.optim.Optimizer:
        """Return the optimizer of the run; raise an ArgumentError unless there is exactly one."""
        if len(state.optimizers) != 1:
            raise ArgumentError(
                f"swa_lr={self.last} is the learning rate of one optimizer, and State has {len(state.optimizers)}: "
                "leave swa_lr out, and schedule their learning rates yourself"
            )
        return state.optimizers[0]

    def advance(self, state: State) -> None:
        """Set the rates that belong to this position; begin here if it has not begun."""
        optimizer = self.check(state)
        if not self.is_of(state):
            self._begun = int(state.timestamp.get(self.length.unit))
            self._first = [float(group["lr"]) for group in optimizer.param_groups]
        self._run, state.loop.schedulers_paused = weakref.ref(state), True
        anneal_rates(optimizer, self._first, self.last, min(1.0, self._passed(state) / self.length.value))

    def forget(self) -> None:
        """Begin anew, in whichever run."""
        self._first, self._run = [], None

    def state_dict(self) -> dict[str, Any]:
        """Return where it began, and with which rates; empty if it has not."""
        return {"begun": self._begun, "rates": list(self._first)} if self.has_begun else {}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue in the next run."""
        self.forget()
        if saved:
            self._begun, self._first = saved["begun"], list(saved["rates"])

    def _passed(self, state: State) -> int:
        return int(state.timestamp.get(self.length.unit)) - self._begun


def check_annealing(saved: object) -> None:
    """Raise an ArgumentError or ArgumentTypeError unless `Annealing.state_dict` can have returned it."""
    if not isinstance(saved, Mapping) or (saved and saved.keys() != {"begun", "rates"}):
        raise ArgumentTypeError(f"annealing={saved!r} in the state of swa has to have 'begun' and 'rates'")
    if saved:
        check_whole("begun", saved["begun"], "[0, inf)", "where learning rates began to change")
        if not isinstance(saved["rates"], Sequence) or not saved["rates"]:
            raise ArgumentTypeError(f"rates={saved['rates']!r} in the state of swa has to be a list of learning rates")
        for rate in saved["rates"]:
            check_number("rates", rate, "(-inf, inf)", "the learning rates at the start")
