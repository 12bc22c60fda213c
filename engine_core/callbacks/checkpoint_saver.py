"""Save the run at intervals, beside training. Knows folders and snapshots, and no Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import check_whole
from ..callback import Callback
from ..checkpoint.store import Store
from ..checkpoint.writer import BackgroundWriter
from ..errors import EngineError
from ..intervals import Interval
from ..time import Time, Timestamp

if TYPE_CHECKING:
    from ..logger import Logger
    from ..state import State

__all__ = ["CheckpointSaver"]


class CheckpointSaver(Callback):
    """Saves the run at intervals, in a folder of its own.

    Args:
        folder: made when the first checkpoint is written.
        interval: how often, in any unit of time.
        keep_last: how many checkpoints stay; None: all.
    """

    def __init__(self, folder: Path | str, interval: Time | str = "1ep", keep_last: int | None = 3) -> None:
        self.checkpoint_folder = Path(folder)
        self._interval = Interval(interval, "interval")
        self.keep_last = None if keep_last is None else check_whole("keep_last", keep_last, "[1, inf)", "how many stay")
        self._store = Store(self.checkpoint_folder)
        self._writer = BackgroundWriter()
        self._saved_at = Timestamp()

    def fit_start(self, state: State, logger: Logger) -> None:
        """Take the folder."""
        if state.snapshot is None:
            raise EngineError("checkpoint_saver needs state.snapshot, which this loop does not offer")
        self._store.lock()
        self._saved_at = state.timestamp

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Save if an interval has passed."""
        self._save_if_due(state)

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        """Save if an interval has passed."""
        self._save_if_due(state)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Save what no interval has saved."""
        if state.timestamp != self._saved_at:
            self._save(state)
        self._writer.wait()

    def close(self, state: State, logger: Logger) -> None:
        """Wait for what is being written."""
        try:
            self._writer.wait()
        finally:
            self._store.unlock()

    def _save_if_due(self, state: State) -> None:
        self._writer.raise_error()
        if self._interval.passed(self._saved_at, state.timestamp):
            self._save(state)

    def _save(self, state: State) -> None:
        snapshot: Any = state.snapshot
        at, content = snapshot()
        self._saved_at = at

        def write() -> None:
            self._store.save(at, content)
            if self.keep_last is not None:
                self._store.keep(self.keep_last)

        self._writer.start(write)
