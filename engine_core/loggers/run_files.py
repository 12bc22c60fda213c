"""Write what a run logs to `metrics.jsonl` and `metrics.csv`. Knows no Trainer."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..arguments import path_of
from ..callback import LoggerDestination
from ..errors import ArgumentError, DestinationWarning
from ..files import cannot_write, finite, write_whole
from ..logger import HOW_TO_STOP, VALUES, Logger, Traces
from ..messages import warn
from ..state import State
from .values import in_json
from .whole_lines import MOST_DUE_BYTES, Lines, write_table

__all__ = ["RunFiles"]


class RunFiles(LoggerDestination):
    """Writes every logged value to `folder/metrics.jsonl`, and at the end one row a step to `folder/metrics.csv`.

    Each line has its `kind`: that of values is `values`, and in the folder of `engine-core train` there are others,
    which tell what happened.

    From INIT on, values are held until the fit starts, when it is certain that the run may begin; if there is only an
    evaluation, until the end. In a fit, and without an engine, a line is in the file when `log_metrics` returns. If the
    disk is full, a warning says so once, and the latest 256 KiB wait until there is room; no partial line is left in
    the file, and `latest` and `runs` stay current. An existing file is continued. Values that are not finite are `null`
    in JSON, and `nan` in the table, which names a text that is too long for a cell without holding it.

    Args:
        folder: created when the first line is written or the fit starts.

    Example:
        >>> import tempfile
        >>> files = RunFiles(tempfile.mkdtemp())
        >>> files.log_metrics({"train/loss": 0.5}, step=1)
        >>> files.latest
        {'train/loss': 0.5}
        >>> files.close()
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = path_of(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise ArgumentError(f"RunFiles needs a folder, and {str(folder)!r} is a file; choose another place")
        self.latest: dict[str, Any] = {}
        self.runs: Counter[str] = Counter()
        self.lost = ""
        self._place = self.folder.absolute()  # the working directory may change
        self._clock_s = self._fits_s = 0.0
        self._fit_began_s: float | None = None
        self._started_s = time.perf_counter()
        self._has_warned = self._starts_over = self._has_evaluated = False
        self._resumed: Mapping[str, Any] | None = None
        self._held: list[Callable[[], None]] | None = None
        self._state: State | None = None
        self._holds_at = 0
        self._lines = Lines(self._place / "metrics.jsonl")
        self._lock = threading.RLock()  # another thread may warn, which is an event

    def init(self, state: State, logger: Logger) -> None:
        """Count the seconds from here; a checkpoint that is loaded adds those of the attempts before."""
        self._clock_s, self._started_s = 0.0, time.perf_counter()
        self._fits_s, self._fit_began_s, self._has_warned = 0.0, None, False
        self._state, self._holds_at = state, state.timestamp.batch
        self._hold()

    def fit_start(self, state: State, logger: Logger) -> None:
        """Open the file; that of a resumed run is cut only now, after savers checked that no other run is active.

        Raises:
            ArgumentError: (a ValueError) if it can't be written.
        """
        self._fit_began_s = time.perf_counter()
        try:
            self._cut()  # before anything is appended, which would be cut off too
            self._lines.flush()
        except OSError as error:
            message = f"RunFiles can't write in {str(self.folder)!r} ({error}); give it a folder that you can write to"
            raise cannot_write(error, message) from error
        self._release()

    def after_load(self, state: State, logger: Logger) -> None:
        """Note where the run continues."""
        self._holds_at = state.timestamp.batch

    def eval_end(self, state: State, logger: Logger) -> None:
        """Note that there is something to write even if no fit starts."""
        self._has_evaluated = True

    def fit_end(self, state: State, logger: Logger) -> None:
        """Stop the clock of the fit."""
        self._fits_s, self._fit_began_s = self.fit_s, None

    @property
    def fit_s(self) -> float:
        """The wall-clock time in `fit`, in seconds, of all attempts of a resumed run."""
        return self._fits_s + (0.0 if self._fit_began_s is None else time.perf_counter() - self._fit_began_s)

    @property
    def clock_s(self) -> float:
        """The time since the first attempt's INIT, in seconds, without the time between attempts."""
        return self._clock_s + time.perf_counter() - self._started_s

    def start_over(self) -> None:
        """Let the next fit empty the file, which an earlier attempt began and never saved.

        One that contains the position of a loaded checkpoint is cut there instead. Events stay.
        """
        self._starts_over = True
        self._hold()

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write a line, or hold it until the fit starts."""
        values = in_json(metrics)
        self.latest.update(values)
        self._do(partial(self._add, values, step))

    def write_event(self, line: str, *, is_last: bool = False) -> None:
        """Write what happened in the run, as values are written; the last one may come after the engine is closed."""
        self._do(partial(self._write, line))
        if is_last:
            with contextlib.suppress(OSError):  # if it could not be written, a warning says so
                self._lines.close()

    def log_file(self, name: str, content: bytes | str, step: int) -> None:
        """Keep a file as `files/<step>/<name>`; one that is there is replaced, as a resumed run logs its own again."""
        self._do(partial(self._write_file, self._place / "files" / str(step) / name, content))

    def log_traces(self, traces: Traces) -> None:
        """Count in `runs` how often each algorithm ran at each event, as in `Noise/AFTER_DATALOADER`."""
        runs = self.runs
        for name, trace in traces.items():
            if trace.run:
                runs[name] += 1

    def state_dict(self) -> dict[str, Any]:
        """Return how far the file is written, a digest of its end, and what is not written yet."""
        counts = {"latest": _short(self.latest), "runs": dict(self.runs), "clock_s": self.clock_s, "fit_s": self.fit_s}
        if self._resumed is not None:
            return {**self._resumed, **counts}
        if not self._lines.size and not self._lines.due:
            return {}
        return {**self._lines.position(), **counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next fit remove what was logged after the checkpoint, as the resumed run logs it again.

        Files of other runs are kept and continued.
        """
        if not state:
            return
        numbers = {name: int(state[name]) for name in ("bytes", "lost")}
        position = {**numbers, "digest": str(state["digest"]), "due": [str(line) for line in state["due"]]}
        latest, runs = dict(state["latest"]), {str(name): int(count) for name, count in state["runs"].items()}
        times_s = [float(state.get(name, 0.0)) for name in ("clock_s", "fit_s")]
        self._resumed, self.latest, self.runs = position, latest, Counter(runs)
        self._clock_s, self._fits_s = times_s
        self._started_s = time.perf_counter()
        self._hold()

    def close(self, state: State | None = None, logger: Logger | None = None) -> None:
        """Write what is due and the table, and close the file; a warning says how much can't be written and is lost.

        Nothing is written if no fit started, as in a run that was refused, unless there was an evaluation.
        """
        self._resumed = None
        if not self._has_evaluated and self._held is not None:
            self._held.clear()
        self._release()
        lines, problem, lost = self._lines, "", []
        table = lines.path.with_name("metrics.csv")
        begun = lines.is_open or bool(lines.due) or (self._is_complete() and lines.path.exists() and not table.exists())
        try:
            lines.close()
        except OSError as error:
            problem = f"can't write in {str(self.folder)!r} at its end ({error})"
        if lines.unwritten:
            problem = problem or f"could not write in {str(self.folder)!r}, and its buffer overflowed"
            lost = [f"{lines.unwritten} lines for {lines.path.name}"]
        if begun:
            try:
                write_table(lines.path, table)
            except OSError as error:
                problem = problem or f"can't write in {str(self.folder)!r} at its end ({error})"
                lost.append("the table metrics.csv")
        self._lines, self._has_evaluated = Lines(lines.path), False
        if problem:
            self.lost = f"{' and '.join(lost) or lines.path.name} {'are' if lines.unwritten else 'is'} lost"
            self._warn(f"{problem}: {self.lost}")

    def _is_complete(self) -> bool:
        """Is the training complete? One that was killed only then has nothing to do when it is started again."""
        elapsed = None if self._state is None else self._state.get_elapsed_duration()
        return elapsed is not None and elapsed.value >= 1

    def _trains_without_fit(self) -> bool:
        """Is this a loop of somebody's own, which fires no FIT_START?"""
        if self._resumed is not None or self._starts_over or self._state is None:
            return False
        return self._state.timestamp.batch > self._holds_at

    def _hold(self) -> None:
        self._held = [] if self._held is None else self._held

    def _release(self) -> None:
        held, self._held = self._held, None
        for write in held or ():
            self._do(write)

    def _do(self, write: Callable[[], None]) -> None:
        """Write something, or hold it back."""
        if self._held is not None and self._trains_without_fit():
            self._release()
        if self._held is not None:
            self._held.append(write)
            return
        try:
            with self._lock:
                write()
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                self._warn(
                    f"can't write in {str(self.folder)!r} ({error}); training continues, and the latest "
                    f"{MOST_DUE_BYTES // 1024} KiB of values are kept until they can be written. {HOW_TO_STOP}"
                )

    def _add(self, values: dict[str, Any], step: int) -> None:
        # Also where a value has one of these names.
        own = {"kind": VALUES, "step": step, "seconds": round(self.clock_s, 6)}
        self._write(json.dumps({**own, **finite(values), **own}))

    def _write(self, line: str) -> None:
        self._lines.add(line)
        self._lines.flush()

    @staticmethod
    def _write_file(path: Path, content: bytes | str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)

    def _cut(self) -> None:
        """Cut the file at the position of a loaded checkpoint if it contains it; else at its begin, to start over."""
        position = self._resumed
        if position is None or not self._lines.holds(position):
            position = {"bytes": 0, "due": [], "lost": 0} if self._starts_over else None
        if position is not None:
            with contextlib.suppress(OSError):
                self._lines.close()
            self._lines = Lines(self._lines.path)
            self._lines.cut(position)
        self._resumed, self._starts_over = None, False

    def _warn(self, problem: str) -> None:
        warn(f"logger destination RunFiles {problem}", DestinationWarning)


def _short(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a checkpoint keeps: numbers, and as much text as may wait; its JSON has to stay small."""
    kept, room = {}, MOST_DUE_BYTES
    for name, value in values.items():
        room -= len(value) if isinstance(value, str) else 0
        if value is None or isinstance(value, (int, float)) or (isinstance(value, str) and room >= 0):
            kept[name] = value
    return kept
