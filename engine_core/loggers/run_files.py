"""Keep what a run logs in files: `metrics.jsonl` and `metrics.csv`. Knows no Trainer."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..callback import LoggerDestination
from ..errors import ArgumentError, DestinationWarning
from ..logger import HOW_TO_STOP, Logger
from ..messages import warn
from .whole_lines import MOST_DUE_BYTES, WRITTEN_AS_THEY_ARE, Lines, Table

if TYPE_CHECKING:
    from ..state import State
    from ..trace import Traces

__all__ = ["RunFiles", "finite"]

_DIGESTED_BYTES = 4096
_ANOTHER = "-"
"""Stands for the digest of a file that can't be the one that was saved."""


class RunFiles(LoggerDestination):
    """Writes every logged value to `folder/metrics.jsonl`, and one row a step to `folder/metrics.csv`.

    A line is in the file when `log_metrics` returns, the CSV's row when the next step begins, or at close. What can't
    be written whole, as on a full disk, is told once and kept for the next time, the latest 256 KiB for each file, and
    no half of it is in the file; `latest` and `runs` go on meanwhile. Columns that come up later are added to the CSV.
    Values that are not finite are `null` in JSON. Files that are there are continued.

    Args:
        folder: made when the first line is written, or the fit starts.

    Example:
        >>> import tempfile
        >>> files = RunFiles(tempfile.mkdtemp())
        >>> files.log_metrics({"train/loss": 0.5}, step=1)
        >>> files.latest
        {'train/loss': 0.5}
        >>> files.close()
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._place = self.folder.absolute()  # wherever the program goes afterwards
        if self.folder.exists() and not self.folder.is_dir():
            raise ArgumentError(f"RunFiles needs a folder, and {str(folder)!r} is a file; choose another place")
        self.latest: dict[str, Any] = {}
        self.runs: Counter[str] = Counter()
        self._started_s = time.perf_counter()
        self._lines, self._table = Lines(self._lines_path), Table(self._table_path)
        self._has_told = False
        self._resumed: Mapping[str, Any] | None = None
        self._held: list[tuple[dict[str, Any], int]] = []
        self._starts_over = False

    def init(self, state: State, logger: Logger) -> None:
        """Count the seconds from here."""
        self._started_s = time.perf_counter()

    def fit_start(self, state: State, logger: Logger) -> None:
        """Open the files; those of a resumed run are cut, as no saver has found that another one still writes them.

        Raises:
            ArgumentError: (a ValueError) if they can't be written.
        """
        try:
            self._go_on()
            self._flush()
        except OSError as error:
            raise ArgumentError(
                f"RunFiles can't write in {str(self.folder)!r} ({error}); give it a folder where you may write"
            ) from error

    def start_over(self) -> None:
        """Let the next fit empty the files, which an attempt has begun that was never saved.

        Files in which a loaded checkpoint finds its place are cut to it instead.
        """
        self._starts_over = True

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write a line; before the fit of a resumed run hold it back."""
        plain = {str(name): _plain(value) for name, value in metrics.items()}
        self.latest.update(plain)
        if self._resumed is not None or self._starts_over:
            self._held.append((plain, step))
        else:
            self._add(plain, step)
            try:
                self._flush()
            except OSError as error:
                self._tell(error)

    def log_traces(self, traces: Traces) -> None:
        """Count in `runs` how often each algorithm ran at each event, as in `Noise/AFTER_DATALOADER`."""
        runs = self.runs
        for name, trace in traces.items():
            if trace.run:
                runs[name] += 1

    def state_dict(self) -> dict[str, Any]:
        """Return how far the files are written, how they end there, and what is not written yet."""
        if self._resumed is not None:
            return {**self._resumed, **self._counts()}
        size = self._lines.size
        if not size and not self._lines.due.items:
            return {}
        return {
            "bytes": size,
            "digest": _digest_before(self._lines_path, size),
            "due": list(self._lines.due.items),
            "lost": self._lines.due.lost,
            "table": self._table.position(),
            **self._counts(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next fit take away what was logged after the checkpoint, as the resumed run logs it again.

        Files that are not those of the saved run are left, and continued.

        Raises:
            ArgumentError: (a ValueError) for what `state_dict` never returns.
        """
        if not state:
            return
        _check_state(state)
        self.latest, self.runs = dict(state["latest"]), Counter(state["runs"])
        self._resumed = state

    def close(self, state: State | None = None, logger: Logger | None = None) -> None:
        """Write what is held and close the files; what they don't take even now is lost, and what is lost is told."""
        self._resumed = None
        self._add_held()
        try:
            self._each("close")
        except OSError as error:
            self._tell_of_losses(f"can't write in {str(self.folder)!r} at its end ({error})")
        else:
            if self._lines.due.lost or self._table.due.lost:
                self._tell_of_losses(f"could not write in {str(self.folder)!r} for too long")
        finally:
            self._lines, self._table = Lines(self._lines_path), Table(self._table_path)
            self._has_told = False

    @property
    def _lines_path(self) -> Path:
        return self._place / "metrics.jsonl"

    @property
    def _table_path(self) -> Path:
        return self._place / "metrics.csv"

    def _counts(self) -> dict[str, Any]:
        latest = {name: value for name, value in self.latest.items() if isinstance(value, WRITTEN_AS_THEY_ARE)}
        return {"latest": latest, "runs": dict(self.runs)}

    def _go_on(self) -> None:
        """Cut the files to where a checkpoint has found them, if they are the same."""
        state = self._resumed
        if state is not None and _ANOTHER != _digest_before(self._lines_path, state["bytes"]) == state["digest"]:
            self._let_go()
            if state["bytes"]:
                os.truncate(self._lines_path, state["bytes"])
            self._lines.due.extend(state["due"])
            self._lines.due.lost = state["lost"]
            self._table.go_on(state["table"])
        elif self._starts_over:
            self._let_go()
            self._lines_path.unlink(missing_ok=True)
            self._table_path.unlink(missing_ok=True)
        self._resumed, self._starts_over = None, False
        self._add_held()

    def _let_go(self) -> None:
        """Close the files and forget what is due."""
        with contextlib.suppress(OSError):
            self._each("close")
        self._lines, self._table = Lines(self._lines_path), Table(self._table_path)

    def _add_held(self) -> None:
        held, self._held = self._held, []
        for plain, step in held:
            self._add(plain, step)

    def _add(self, plain: dict[str, Any], step: int) -> None:
        seconds = round(time.perf_counter() - self._started_s, 6)
        self._lines.due.extend([json.dumps({"step": step, "seconds": seconds, **finite(plain)}, default=str)])
        self._table.add(step, plain)

    def _flush(self) -> None:
        """Open the files that are not yet, and write what is due."""
        self._each("flush")

    def _each(self, method: str) -> None:
        """Do something with both files, whatever becomes of the first."""
        try:
            getattr(self._lines, method)()
        finally:
            getattr(self._table, method)()

    def _tell(self, error: OSError) -> None:
        if not self._has_told:
            self._has_told = True
            warn(
                f"logger destination RunFiles can't write in {str(self.folder)!r} ({error}); training goes on, and the "
                f"latest {MOST_DUE_BYTES // 1024} KiB for each file are kept until they can be written. {HOW_TO_STOP}",
                DestinationWarning,
            )

    def _tell_of_losses(self, cause: str) -> None:
        lines, rows = self._lines.due.unwritten, self._table.due.unwritten
        warn(
            f"logger destination RunFiles {cause}: {lines} lines for {self._lines_path.name} and {rows} rows for "
            f"{self._table_path.name} are lost",
            DestinationWarning,
        )


def _digest_before(path: Path, size: int) -> str:
    """Return a digest of the last bytes before `size`, or nothing if there are none."""
    there = path.stat().st_size if path.is_file() else 0
    if there < size or not size:
        return _ANOTHER if there else ""
    begin = max(0, size - _DIGESTED_BYTES)
    with path.open("rb") as file:
        file.seek(begin)
        return hashlib.sha256(file.read(size - begin)).hexdigest()


def _check_state(state: Mapping[str, Any]) -> None:
    """Raise an ArgumentError unless each part of a RunFiles' state has its type."""
    table = state.get("table")
    parts = {**state, **{f"table.{name}": value for name, value in (table.items() if isinstance(table, dict) else ())}}
    for name, kind in _STATE.items():
        part: Any = parts.get(name)
        is_good = type(part) is kind and not (type(part) is int and part < 0)
        if is_good and name == "runs":
            is_good = all(type(count) is int for count in part.values())
        if is_good and name == "due":
            is_good = all(type(line) is str for line in part)
        if is_good and name == "table.due":
            is_good = all(type(row) is dict and "step" in row for row in part)
        if is_good and name == "table.row":
            is_good = not part or "step" in part
        if not is_good:
            raise ArgumentError(f"{name}={part!r} in the state of RunFiles is nothing that it has saved")


_STATE: dict[str, type] = {
    "bytes": int,
    "digest": str,
    "due": list,
    "lost": int,
    "table": dict,
    "table.rows": int,
    "table.due": list,
    "table.lost": int,
    "table.row": dict,
    "latest": dict,
    "runs": dict,
}


def _plain(value: Any) -> Any:
    """Return a tensor's or an array's numbers as Python's own."""
    return value.tolist() if hasattr(value, "tolist") else value


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with None for what JSON has no number for."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
