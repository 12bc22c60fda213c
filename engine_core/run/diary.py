"""The diary of a run: events in `metrics.jsonl`, what happened when, and how often each algorithm ran."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..callbacks.reporter import RunReporter, as_line
from ..logger import Logger
from ..loggers.run_files import RunFiles
from ..state import State
from .outcome import Ending

OWN_KINDS = ("epoch", "progress", "warning", "timing")
"""The kinds that the file has and `train --json` does not print."""
PROGRESS_EVERY = 1000
"""How many batches lie between two lines of progress."""
MOST_WARNINGS = 200


class Diary(RunReporter):
    """Writes each event of a run among what it logs, and hands it on; those of earlier attempts stay.

    The file has further kinds: `epoch` at each EPOCH_END and `progress` every 1,000 batches, with `runs`, how often
    each algorithm ran at each event since the line before; `warning`, with `category` and `message`; and `timing`, with
    the sums of a run that did not finish.

    Args:
        files: what writes the events, counts the runs, has the clock, and says where the folder is.
        hand_on: receives the lines that `train --json` prints.
    """

    def __init__(self, files: RunFiles, hand_on: Callable[[str], object] = lambda _: None) -> None:
        super().__init__(hand_on)
        self._files = files
        self._counted = Counter[str]()
        self._warned = set[str]()
        self._state = State()

    @property
    def seconds(self) -> float:
        """Return the time since the first attempt's INIT, in seconds, without the time between attempts."""
        return self._files.clock_s

    def fit_start(self, state: State, logger: Logger) -> None:
        """Tell what the run is, once, and count the algorithms' runs from here."""
        self._state, self._counted = state, Counter(self._files.runs)
        super().fit_start(state, logger)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Take the loss of the batch, and tell now and then how far the run is."""
        super().batch_end(state, logger)
        if not state.timestamp.batch % PROGRESS_EVERY:
            self._tell_runs("progress", state)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Tell that an epoch is complete."""
        self._tell_runs("epoch", state)

    def emit(self, event: dict[str, Any]) -> None:
        """Write the event, and hand it on if it is not the file's own."""
        line = as_line(event)
        if self._started_s is not None:  # else the folder may be another run's
            self._files.write_event(line, is_last="status" in event)
        if event["kind"] not in OWN_KINDS:
            self._write(line)

    def end_with(self, ending: Ending, exit_code: int | None = None, resume: str | None = None) -> None:
        """Write how the run ended, once, after the engine is closed.

        Args:
            exit_code: of the command; None: there is none.
            resume: the command that resumes the run.
        """
        left = {"model": ending.model, "average": ending.average, "checkpoint": ending.checkpoint}
        is_over = ending.status == "finished" or ending.checkpoint is None
        self.end(ending.status, exit_code, folder=ending.folder, **left, resume=None if is_over else resume)

    def tell_timing(self, sums: Mapping[str, Any]) -> None:
        """Write how long the parts of a run took that leaves no results."""
        self.emit({**self.event("timing", self._state), **sums})

    @contextlib.contextmanager
    def noting_warnings(self) -> Iterator[None]:
        """Tell of each warning that is shown; filters and whoever shows it are as before."""
        shown = warnings.showwarning

        def show(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
            self._note(category.__name__, str(message))
            shown(message, category, *place, **more)

        warnings.showwarning = show
        try:
            yield
        finally:
            if warnings.showwarning is show:
                warnings.showwarning = shown

    def _note(self, category: str, message: str) -> None:
        if self._started_s is None or message in self._warned or len(self._warned) > MOST_WARNINGS:
            return
        if len(self._warned) == MOST_WARNINGS:
            category = "Warning"
            message = f"there were more than {MOST_WARNINGS} warnings; the others are left out"
        self._warned.add(message)
        self.emit({**self.event("warning", self._state), "category": category, "message": message})

    def _tell_runs(self, kind: str, state: State) -> None:
        runs = self._files.runs
        self.emit({**self.event(kind, state), "runs": dict(runs - self._counted)})
        self._counted = Counter(runs)
