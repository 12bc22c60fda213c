"""Rank checkpoints by an evaluation result; each result counts for one checkpoint. Writes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ArgumentError, CheckpointError, CheckpointWarning, did_you_mean
from ..messages import warn
from ..state import State
from .monitor import Monitor

Best = list[tuple[float, str]]
"""Values with the names of their checkpoints, best first."""


class _Counted(NamedTuple):
    """The last result counted: the metrics it was part of, its value, and the checkpoint that it counts for."""

    among: Mapping[str, float]
    value: float | None
    checkpoint: str

    def is_in(self, state: State, key: str) -> bool:
        """Is it still the latest? A later evaluation has its own results; a loop may write into the old ones."""
        value = state.metrics.get(key)
        return self.among is state.metrics and (self.value is value or self.value == value)  # NaN equals nothing


class Ranking:
    """The best checkpoints in a folder, as a monitor ranks them, and whether the latest result is yet to be counted."""

    def __init__(self, folder: Path, metric: str | None, keep: int) -> None:
        self._folder = folder
        self._monitor = None if metric is None else Monitor(metric)
        self._keep = keep
        self.best: Best = []
        self.awaits = False
        """When the run was saved, was there a result that counted for no checkpoint yet?"""
        self.is_evaluating = False
        self._counted = _Counted({}, None, "")

    def follow(self, state: State) -> None:
        """Let the run's results say which value is better; one without a direction is refused."""
        if self._monitor is not None:
            self._monitor.follow(state)

    def start(self, state: State) -> None:
        """Drop checkpoints no longer in the folder, and a result from before this fit unless it awaits a checkpoint."""
        self.follow(state)
        self.best = self._ranked(self.still_there())  # an older version may have ranked them the other way round
        self.is_evaluating = False
        if self._monitor is not None and not self.awaits:
            self._counted = _Counted(state.metrics, state.metrics.get(self._monitor.key), "")

    def awaits_checkpoint(self, state: State) -> bool:
        """Is there a result that counts for no checkpoint yet?"""
        monitor = self._monitor
        return monitor is not None and monitor.key in state.metrics and not self._counted.is_in(state, monitor.key)

    def staying(self, written: Path, saved: Sequence[Path], keep_last: int, best: Best) -> list[Path]:
        """Return which checkpoints stay: the one just written, the last of the intervals, and the best."""
        place = saved.index(written) + 1
        # Those beyond come first: this run was resumed from before them, so they won't be continued.
        regular = [path for path in (*saved[place:], *saved[:place]) if is_of_interval(path)]
        return [written, *regular[-keep_last:], *(self._folder / name for _, name in best)]

    def with_checkpoint(self, name: str, state: State) -> Best:
        """Return the best checkpoints after saving one of this name, for which the latest result then counts."""
        best, monitor = self.still_there(), self._monitor
        if monitor is None:
            return best
        if monitor.key not in state.metrics:
            if state.metrics or not state.evaluators:  # else no evaluation has ended yet
                why = did_you_mean(monitor.key, state.metrics)
                warn(f"no evaluation has a result {monitor.key!r} to keep the best by{why}", CheckpointWarning)
            return best
        is_partial = self.is_evaluating and state.is_interrupted
        if is_partial or (self._counted.is_in(state, monitor.key) and self._counted.checkpoint != name):
            return best
        value = state.metrics[monitor.key]
        self._counted = _Counted(state.metrics, value, name)
        if not math.isfinite(value):
            return best
        ranked = [*(pair for pair in best if pair[1] != name), (float(value), name)]
        return self._ranked(ranked)[: self._keep]

    def _ranked(self, best: Best) -> Best:
        descends = self._monitor is None or not self._monitor.smaller_is_better
        return sorted(best, key=lambda pair: pair[0], reverse=descends)

    def load(self, best: Any) -> None:
        """Load the best checkpoints of a saved run."""
        if not isinstance(best, list) or not all(map(_is_rank, best)):
            raise ArgumentError(f"best={best!r} in the state of CheckpointSaver has to be a list of [value, name]")
        self.best = [(float(value), name) for value, name in best]

    def still_there(self) -> Best:
        """Return the best checkpoints that are still in the folder."""
        return [(value, name) for value, name in self.best if (self._folder / name).is_dir()]


def _is_rank(pair: Any) -> bool:
    match pair:
        case [int() | float() as value, str()]:
            return not isinstance(value, bool)
    return False


def is_of_interval(checkpoint: Path) -> bool:
    """Was it saved because an interval had passed? Unreadable ones count as if they were."""
    from ..checkpoint import read_manifest  # noqa: PLC0415  the saver can be listed without torch

    try:
        return bool(read_manifest(checkpoint).get("is_regular", True))
    except CheckpointError:
        return True
