"""Save the run at intervals, beside training. Knows folders and snapshots, and no Trainer."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import check_whole
from ..callback import Callback
from ..errors import ArgumentError, CheckpointError, CheckpointWarning, EngineError, did_you_mean
from ..intervals import Interval
from ..time import Time, Timestamp

if TYPE_CHECKING:
    from ..logger import Logger
    from ..state import State
    from ..trainer.snapshot import Snapshot

__all__ = ["CheckpointSaver"]


class CheckpointSaver(Callback):
    """Saves the run at intervals, at its end and when a signal ends it, in a folder of its own.

    The step that saves waits for a copy of the run in memory; a thread writes it, one checkpoint after the other.

    Args:
        folder: made at the first fit; no other run may save there at the same time.
        interval: how often, in any unit of time.
        keep_last: how many checkpoints stay; None: all.
        keep_best: how many stay for their value of `metric` besides.
        metric: an evaluation result, as `eval/accuracy`; larger is better, of a loss smaller; `min:` or `max:` before
            the name says so. It counts for the first checkpoint after the evaluation.
        on_error: `warn` and train on, or `stop`, if a checkpoint can't be written; without the folder none is.

    Raises:
        ArgumentError: (a ValueError) for what an argument can't be.

    Example:
        >>> CheckpointSaver("checkpoints", interval="500ba", keep_best=1, metric="eval/accuracy").keep_last
        3
    """

    def __init__(
        self,
        folder: Path | str,
        interval: Time | str = "1ep",
        keep_last: int | None = 3,
        keep_best: int | None = None,
        metric: str | None = None,
        on_error: str = "warn",
    ) -> None:
        self.checkpoint_folder = Path(folder)
        self._interval = Interval(interval, "interval")
        self.interval = str(self._interval.length)
        self.keep_last = None if keep_last is None else check_whole("keep_last", keep_last, "[1, inf)", "how many stay")
        self.keep_best = None if keep_best is None else check_whole("keep_best", keep_best, "[1, inf)", "how many stay")
        if (keep_best is None) != (metric is None):
            raise ArgumentError(f"keep_best={keep_best!r} and metric={metric!r} belong together: give both or none")
        if on_error not in ("warn", "stop"):
            raise ArgumentError(f"on_error={on_error!r} has to be 'warn' or 'stop'")
        self.metric, self.on_error = metric, on_error
        from ..checkpoint.store import Store  # noqa: PLC0415  it can be listed and examined without torch
        from ..checkpoint.writer import BackgroundWriter  # noqa: PLC0415

        self._store = Store(self.checkpoint_folder)
        self._writer = BackgroundWriter()
        self._looked_at = self._saved_at = Timestamp()
        self._best: list[tuple[float, str]] = []
        self._ranked: tuple[Any, Any, str] = ({}, None, "")
        """What evaluations have found, its value of the metric, and the checkpoint that this was ranked for."""
        self._is_off = self._is_evaluating = False

    def fit_start(self, state: State, logger: Logger) -> None:
        """Take the folder, and warn of a loader with which the run can't be resumed exactly."""
        if state.snapshot is None:
            raise EngineError("checkpoint_saver needs state.snapshot, which this loop does not offer")
        self._looked_at, self._is_off, self._is_evaluating = state.timestamp, False, False
        self._ranked = (state.metrics, state.metrics.get(self._key), "")  # what was found before is of other weights
        try:
            self._take_folder(state)
        except OSError as error:
            self._is_off = True
            self._fail(error)
            return
        from ..trainer.feed import why_inexact  # noqa: PLC0415

        if state.train_dataloader is not None and (why := why_inexact(state.train_dataloader)):
            warnings.warn(
                f"this run can't be resumed exactly in the middle of an epoch: {why}", CheckpointWarning, stacklevel=2
            )

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Save if an interval has passed, or a signal ends the run."""
        self._save_if_due(state)

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        """Save if an interval has passed, or a signal ends the run."""
        self._save_if_due(state)

    def eval_start(self, state: State, logger: Logger) -> None:
        """Note that the results are not complete."""
        self._is_evaluating = True

    def eval_end(self, state: State, logger: Logger) -> None:
        """Note that they are, unless another loader follows."""
        self._is_evaluating = False

    def fit_end(self, state: State, logger: Logger) -> None:
        """Save what no interval has saved, or could, and wait until it is written."""
        self._finish(self._writer.wait)
        if not self._is_off and (state.timestamp != self._saved_at or self._was_measured_later(state)):
            self._save(state)
            self._finish(self._writer.wait)

    def close(self, state: State, logger: Logger) -> None:
        """Wait for what is being written, and let others have the folder."""
        try:
            self._finish(self._writer.wait)
        finally:
            self._store.unlock()

    def state_dict(self) -> dict[str, Any]:
        """Return which checkpoints are the best so far."""
        return {"best": [list(pair) for pair in self._best]} if self._best else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the best checkpoints, those that are still there when the fit starts.

        Raises:
            ArgumentError: (a ValueError) for what `state_dict` never returns.
        """
        best = state.get("best", [])
        if not isinstance(best, list) or not all(map(_is_rank, best)):
            raise ArgumentError(f"best={best!r} in the state of CheckpointSaver has to be a list of [value, name]")
        self._best = [(float(value), name) for value, name in best]

    @property
    def _key(self) -> str:
        return (self.metric or "").rpartition(":")[2]

    def _take_folder(self, state: State) -> None:
        """Lock the folder, and see what is in it."""
        self._store.lock()
        self._best = self._still_there()
        if (self.checkpoint_folder / self._store.name_of(state.timestamp)).exists():
            self._saved_at = state.timestamp
        if state.timestamp.batch == 0 and (saved := self._store.saved()):
            raise CheckpointError(
                f"{str(self.checkpoint_folder)!r} holds checkpoints of another run, as {saved[-1].name}: "
                "go on from them with Trainer(autoresume=True), or save elsewhere"
            )

    def _save_if_due(self, state: State) -> None:
        self._finish(self._writer.raise_error)
        before, self._looked_at = self._looked_at, state.timestamp
        if self._is_off:
            return
        is_due = self._interval.passed(before, state.timestamp) or state.interrupted_by is not None
        if is_due or self._was_measured_later(state):
            self._save(state)

    def _was_measured_later(self, state: State) -> bool:
        """Has an evaluation ended after this very position was saved, as the last one, or one that was awaited?"""
        return state.timestamp == self._saved_at and self._key in state.metrics and not self._is_ranked(state)

    def _is_ranked(self, state: State) -> bool:
        found, former, _ = self._ranked
        value = state.metrics[self._key]
        return found is state.metrics and (former is value or former == value)  # a NaN is not equal to itself

    def _save(self, state: State) -> None:
        self._finish(self._writer.wait)
        self._finish(lambda: self._begin(state))

    def _begin(self, state: State) -> None:
        """Copy the run, and let it be written; only what is written counts as saved, and can be among the best."""
        ranked = self._rank(state, self._store.name_of(state.timestamp))
        snapshot: Any = state.snapshot
        former, self._best = self._best, ranked  # as it is in a run that goes on from this checkpoint
        try:
            taken: Snapshot = snapshot()
        finally:
            self._best = former

        def write() -> None:
            self._store.save(taken.at, taken.content)
            self._saved_at, self._best = taken.at, ranked
            if self.keep_last is not None:
                self._store.keep(self.keep_last, [self.checkpoint_folder / name for _, name in ranked])

        self._writer.start(write)

    def _rank(self, state: State, name: str) -> list[tuple[float, str]]:
        """Return the best, the checkpoint of this name among them if it is one."""
        best = self._still_there()
        if self.metric is None or self.keep_best is None:
            return best
        way, _, key = self.metric.rpartition(":")
        if key not in state.metrics:
            if state.metrics or not state.evaluators:  # else none has ended yet
                why = did_you_mean(key, state.metrics)
                message = f"no evaluation has a result {key!r} to keep the best by{why}"
                warnings.warn(message, CheckpointWarning, stacklevel=2)
            return best
        value = state.metrics[key]
        is_broken_off = self._is_evaluating and state.interrupted_by is not None
        is_old = self._is_ranked(state) and self._ranked[2] != name
        if is_broken_off or is_old:
            return best
        self._ranked = (state.metrics, value, name)
        if not math.isfinite(value):
            return best
        smaller = way == "min" or (not way and key.rpartition("/")[2] == "loss")
        others = [pair for pair in best if pair[1] != name]
        ranked = sorted([*others, (float(value), name)], key=lambda pair: pair[0], reverse=not smaller)
        return ranked[: self.keep_best]

    def _still_there(self) -> list[tuple[float, str]]:
        return [(value, name) for value, name in self._best if (self.checkpoint_folder / name).is_dir()]

    def _finish(self, write: Any) -> None:
        """Do something that raises what went wrong with a checkpoint, and obey `on_error`."""
        try:
            write()
        except (OSError, CheckpointError) as error:
            self._fail(error)

    def _fail(self, error: OSError | CheckpointError) -> None:
        message = f"no checkpoint was written in {str(self.checkpoint_folder)!r}: {error}"
        if self.on_error == "stop":
            raise CheckpointError(message) from error
        warnings.warn(f"{message}; training goes on", CheckpointWarning, stacklevel=2)


def _is_rank(pair: Any) -> bool:
    """Is this a value with the name of a checkpoint?"""
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        return False
    value, name = pair
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isinstance(name, str)
