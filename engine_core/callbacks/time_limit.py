"""End a fit after a wall-clock limit, so that a later process can resume it."""

from __future__ import annotations

import time

from ..callback import Callback, saver_folders
from ..errors import ArgumentError
from ..logger import Logger
from ..state import State
from ..time import Interval, Time, TimeUnit

__all__ = ["TimeLimit"]


class TimeLimit(Callback):
    """Ends each `fit` after a wall-clock limit, evaluation included; unlike `max_duration`, it restarts with each fit.

    It is checked after each batch, so leave time for one batch and the last checkpoint.

    Args:
        limit: such as `"23h30m"` or `"600sec"`.
        then: `pause` saves the run as a signal does, and a resumed run has the whole limit again; `stop` ends
            training, with the last evaluation.

    Example:
        >>> TimeLimit("1h30m", then="stop").limit
        Time('5400sec')
    """

    every_rank = False  # the others end with the first one
    needs = ("stop",)

    def __init__(self, limit: Time | str, then: str = "pause") -> None:
        self.limit = Interval(limit, "limit").length
        if self.limit.unit is not TimeUnit.SECOND:
            raise ArgumentError(
                f"limit={str(self.limit)!r} has to be a time such as '23h30m'; max_duration takes other units"
            )
        if then not in ("pause", "stop"):
            raise ArgumentError(f"then={then!r} has to be 'pause' or 'stop'")
        self.then = then
        self._ends_s: float | None = None
        self._has_trained = False

    def fit_start(self, state: State, logger: Logger) -> None:
        """Start the clock."""
        if self.then == "pause" and not saver_folders(state.callbacks):
            raise ArgumentError(
                f"time_limit pauses the run after {self.limit}, but no callback saves it: add "
                "('checkpoint_saver', {'folder': 'checkpoints'}) to callbacks, or end it with then='stop'"
            )
        self._ends_s, self._has_trained = time.monotonic() + self.limit.value, False

    def batch_end(self, state: State, logger: Logger) -> None:
        """End the fit if its time is up."""
        self._has_trained = True
        if self._ends_s is not None and time.monotonic() >= self._ends_s:
            end = state.pause_training if self.then == "pause" else state.stop_training
            end(f"TimeLimit: {self.limit} have passed")

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """Interrupt an evaluation, which can be finished later, unless this fit has not trained yet."""
        if self.then == "pause" and self._has_trained:  # else a fit too short for its evaluation would never advance
            self.batch_end(state, logger)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Leave evaluations outside of a fit alone."""
        self._ends_s = None
