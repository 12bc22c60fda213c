"""Write what a run logs to `metrics.jsonl` and `metrics.csv`. Knows no Trainer."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, NonNegativeFloat, NonNegativeInt, ValidationError

from ..arguments import path_of
from ..callback import LoggerDestination
from ..errors import ArgumentError, DestinationWarning
from ..logger import HOW_TO_STOP, Logger
from ..messages import warn
from ..state import State
from ..trace import Traces
from .values import plain
from .whole_lines import MOST_DUE_BYTES, WRITTEN_AS_THEY_ARE, Lines, Table

__all__ = ["RunFiles", "finite"]


class RunFiles(LoggerDestination):
    """Writes every logged value to `folder/metrics.jsonl`, and one row a step to `folder/metrics.csv`.

    A line is in the file when `log_metrics` returns, the CSV's row when the next step begins, or at close. If the disk
    is full, a warning says so once, and the latest 256 KiB for each file wait until there is room; no partial line is
    left in a file, and `latest` and `runs` stay current. New columns are added to the CSV. Values that are not finite
    are `null` in JSON. Existing files are continued.

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
        self._has_warned = self._starts_over = False
        self._resumed: Mapping[str, Any] | None = None
        self._held: list[tuple[dict[str, Any], int]] = []
        self._begin_files()

    def init(self, state: State, logger: Logger) -> None:
        """Count the seconds from here; a checkpoint that is loaded adds those of the attempts before."""
        self._clock_s, self._started_s = 0.0, time.perf_counter()
        self._fits_s, self._fit_began_s = 0.0, None

    def fit_start(self, state: State, logger: Logger) -> None:
        """Open the files; those of a resumed run are cut only now, after savers checked that no other run is active.

        Raises:
            ArgumentError: (a ValueError) if they can't be written.
        """
        self._fit_began_s = time.perf_counter()
        try:
            self._cut()  # before anything is appended, which would be cut off too
            self._add_held()
            self._flush()
        except OSError as error:
            raise ArgumentError(
                f"RunFiles can't write in {str(self.folder)!r} ({error}); give it a folder that you can write to"
            ) from error

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
        """Let the next fit empty the files, which an earlier attempt began and never saved.

        Files that contain the position of a loaded checkpoint are cut there instead.
        """
        self._starts_over = True

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write a line, or hold it back before the fit of a resumed run."""
        values = plain(metrics)
        self.latest.update(values)
        if self._resumed is not None or self._starts_over:
            self._held.append((values, step))
            return
        self._add(values, step)
        try:
            self._flush()
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                self._warn(
                    f"can't write in {str(self.folder)!r} ({error}); training continues, and the latest "
                    f"{MOST_DUE_BYTES // 1024} KiB for each file are kept until they can be written. {HOW_TO_STOP}"
                )

    def log_file(self, name: str, content: bytes | str, step: int) -> None:
        """Keep a file as `files/<step>/<name>`; one that is there is replaced, as a resumed run logs its own again."""
        path = self._place / "files" / str(step) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{name}.part")
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        part.replace(path)

    def log_traces(self, traces: Traces) -> None:
        """Count in `runs` how often each algorithm ran at each event, as in `Noise/AFTER_DATALOADER`."""
        runs = self.runs
        for name, trace in traces.items():
            if trace.run:
                runs[name] += 1

    def state_dict(self) -> dict[str, Any]:
        """Return how far the files are written, a digest of their end, and what is not written yet."""
        latest = {name: value for name, value in self.latest.items() if isinstance(value, WRITTEN_AS_THEY_ARE)}
        counts = {"latest": latest, "runs": dict(self.runs), "clock_s": self.clock_s, "fit_s": self.fit_s}
        if self._resumed is not None:
            return {**self._resumed, **counts}
        if not self._lines.size and not self._lines.due:
            return {}
        return {**self._lines.position(), "table": self._table.position(), **counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next fit remove what was logged after the checkpoint, as the resumed run logs it again.

        Files of other runs are kept and continued.

        Raises:
            ArgumentError: (a ValueError) for what `state_dict` never returns.
        """
        if not state:
            return
        try:
            _State.model_validate(dict(state))
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(part for part in first["loc"] if isinstance(part, str))
            value = None if first["type"] == "missing" else first["input"]
            raise ArgumentError(f"{name}={value!r} in the state of RunFiles is not something it saved") from None
        self.latest, self.runs = dict(state["latest"]), Counter(state["runs"])
        self._clock_s, self._started_s = state.get("clock_s", 0.0), time.perf_counter()
        self._fits_s = state.get("fit_s", 0.0)
        self._resumed = state

    def close(self, state: State | None = None, logger: Logger | None = None) -> None:
        """Write what is held and close the files; a warning says how much can't be written and is lost."""
        self._resumed = None
        self._add_held()
        lines, table, problem = self._lines, self._table, ""
        try:
            self._close_files()
        except OSError as error:
            problem = f"can't write in {str(self.folder)!r} at its end ({error})"
        finally:
            self._begin_files()
            self._has_warned = False
        if not problem and (lines.lost or table.lost):
            problem = f"could not write in {str(self.folder)!r}, and its buffer overflowed"
        if problem:
            lost = f"{lines.unwritten} lines for {lines.path.name} and {table.unwritten} rows for {table.path.name}"
            self.lost = f"{lost} are lost"
            self._warn(f"{problem}: {self.lost}")

    def _begin_files(self) -> None:
        self._lines, self._table = Lines(self._place / "metrics.jsonl"), Table(self._place / "metrics.csv")

    def _close_files(self) -> None:
        with contextlib.closing(self._table):  # even if the other fails
            self._lines.close()

    def _cut(self) -> None:
        """Cut the files at the position of a loaded checkpoint if they contain it; else empty them, to start over."""
        position = self._resumed
        is_there = position is not None and self._lines.holds(position)
        if is_there or self._starts_over:
            with contextlib.suppress(OSError):
                self._close_files()
            self._begin_files()
        if position is not None and is_there:
            self._lines.cut(position)
            self._table.cut(position["table"])
        elif self._starts_over:
            self._lines.path.unlink(missing_ok=True)
            self._table.path.unlink(missing_ok=True)
        self._resumed, self._starts_over = None, False

    def _add_held(self) -> None:
        held, self._held = self._held, []
        for values, step in held:
            self._add(values, step)

    def _add(self, values: dict[str, Any], step: int) -> None:
        seconds = round(self.clock_s, 6)
        self._lines.add(json.dumps({"step": step, "seconds": seconds, **finite(values)}, default=str))
        self._table.log(step, values)

    def _flush(self) -> None:
        try:
            self._lines.flush()
        finally:
            self._table.flush()

    def _warn(self, problem: str) -> None:
        warn(f"logger destination RunFiles {problem}", DestinationWarning)


def _has_step(row: dict[str, Any]) -> dict[str, Any]:
    if row and "step" not in row:
        raise ValueError("a row has a step")
    return row


_Row = Annotated[dict[str, Any], AfterValidator(_has_step)]


class _TablePosition(BaseModel, strict=True, defer_build=True):
    rows: NonNegativeInt
    due: list[_Row]
    lost: NonNegativeInt
    row: _Row


class _State(BaseModel, strict=True, defer_build=True):
    bytes: NonNegativeInt
    digest: str
    due: list[str]
    lost: NonNegativeInt
    table: _TablePosition
    latest: dict[str, Any]
    runs: dict[str, int]
    clock_s: NonNegativeFloat = 0.0
    fit_s: NonNegativeFloat = 0.0


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with None for non-finite numbers, which JSON lacks."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
