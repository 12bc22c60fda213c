"""Save the run at intervals, beside training. Knows folders and snapshots, and no Trainer."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import check_whole
from ..callback import Callback
from ..checkpoint.store import Store
from ..checkpoint.writer import BackgroundWriter
from ..errors import ArgumentError, CheckpointError, CheckpointWarning, EngineError, did_you_mean
from ..intervals import Interval
from ..time import Time, Timestamp
from ..trainer.feed import why_inexact

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
            the name says so.
        on_error: `warn` and train on, or `stop`, if a checkpoint can't be written.

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
        self._store = Store(self.checkpoint_folder)
        self._writer = BackgroundWriter()
        self._looked_at = self._saved_at = Timestamp()
        self._best: list[tuple[float, str]] = []

    def fit_start(self, state: State, logger: Logger) -> None:
        """Take the folder, and warn of a loader with which the run can't be resumed exactly."""
        if state.snapshot is None:
            raise EngineError("checkpoint_saver needs state.snapshot, which this loop does not offer")
        self._store.lock()
        self._looked_at = state.timestamp
        if (self.checkpoint_folder / self._store.name_of(state.timestamp)).exists():
            self._saved_at = state.timestamp
        if state.timestamp.batch == 0 and (saved := self._store.saved()):
            raise CheckpointError(
                f"{str(self.checkpoint_folder)!r} holds checkpoints of another run, as {saved[-1].name}: "
                "go on from them with Trainer(autoresume=True), or save elsewhere"
            )
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

    def fit_end(self, state: State, logger: Logger) -> None:
        """Save what no interval has saved, and wait until it is written."""
        if state.timestamp != self._saved_at:
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
        """Go on with those of the best checkpoints that are still there."""
        self._best = [(value, name) for value, name in state["best"] if (self.checkpoint_folder / name).is_dir()]

    def _save_if_due(self, state: State) -> None:
        self._finish(self._writer.raise_error)
        before, self._looked_at = self._looked_at, state.timestamp
        if self._interval.passed(before, state.timestamp) or state.interrupted_by is not None:
            self._save(state)

    def _save(self, state: State) -> None:
        self._finish(self._writer.wait)
        self._saved_at = state.timestamp
        name = self._store.name_of(state.timestamp)
        self._rank(state, name)
        self._finish(lambda: self._begin(state.snapshot))

    def _begin(self, snapshot: Any) -> None:
        taken: Snapshot = snapshot()
        best = [self.checkpoint_folder / name for _, name in self._best]

        def write() -> None:
            self._store.save(taken.at, taken.content)
            if self.keep_last is not None:
                self._store.keep(self.keep_last, best)

        self._writer.start(write)

    def _rank(self, state: State, name: str) -> None:
        """Take the checkpoint among the best if it is one of them."""
        if self.metric is None or self.keep_best is None:
            return
        way, _, key = self.metric.rpartition(":")
        if key not in state.metrics:
            warnings.warn(
                f"no evaluation has a result {key!r} to keep the best by{did_you_mean(key, state.metrics)}",
                CheckpointWarning,
                stacklevel=2,
            )
            return
        smaller = way == "min" or (not way and key.rpartition("/")[2] == "loss")
        ranked = sorted([*self._best, (state.metrics[key], name)], key=lambda pair: pair[0], reverse=not smaller)
        self._best = ranked[: self.keep_best]

    def _finish(self, write: Any) -> None:
        """Do something that raises what went wrong with a checkpoint, and obey `on_error`."""
        try:
            write()
        except (OSError, CheckpointError) as error:
            message = f"no checkpoint was written in {str(self.checkpoint_folder)!r}: {error}"
            if self.on_error == "stop":
                raise CheckpointError(message) from error
            warnings.warn(f"{message}; training goes on", CheckpointWarning, stacklevel=2)
