"""Keep what a run logs in files: `metrics.jsonl` and `metrics.csv`. Knows no Trainer."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from ..logger import Logger, LoggerDestination
from .whole_lines import WRITTEN_AS_THEY_ARE, Table, WholeLines

if TYPE_CHECKING:
    from ..state import State
    from ..trace import Traces

__all__ = ["RunFiles", "finite"]

_DIGESTED_BYTES = 4096


class RunFiles(LoggerDestination):
    """Writes every logged value to `folder/metrics.jsonl`, and one row a step to `folder/metrics.csv`.

    A line is in the file when `log_metrics` returns, the CSV's row when the next step begins, or at close. What can't
    be written whole, as on a full disk, is kept for the next time, and no half of it is in the file. Columns that come
    up later are added to the CSV. Values that are not finite are `null` in JSON. Files that are there are continued.

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
        if self.folder.exists() and not self.folder.is_dir():
            raise ArgumentError(f"RunFiles needs a folder, and {str(folder)!r} is a file; choose another place")
        self.latest: dict[str, Any] = {}
        self.runs: Counter[str] = Counter()
        self._started_s = time.perf_counter()
        self._lines: WholeLines | None = None
        self._table: Table | None = None
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
            self._open()
        except OSError as error:
            raise ArgumentError(
                f"RunFiles can't write in {str(self.folder)!r} ({error}); give it a folder where you may write"
            ) from error

    def start_over(self) -> None:
        """Let the next fit empty the files, which an attempt has begun that was never saved."""
        self._starts_over = True

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write a line; before the fit of a resumed run hold it back."""
        plain = {name: _plain(value) for name, value in metrics.items()}
        self.latest.update(plain)
        if self._resumed is not None or self._starts_over:
            self._held.append((plain, step))
        else:
            self._write(plain, step)

    def _write(self, plain: dict[str, Any], step: int) -> None:
        lines, table = self._open()
        seconds = round(time.perf_counter() - self._started_s, 6)
        line = json.dumps({"step": step, "seconds": seconds, **finite(plain)}, default=str)
        try:
            lines.add(f"{line}\n".encode())
        finally:
            table.add(step, plain)

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
        if self._lines is None or self._table is None or not self._lines.size:
            return {}
        size = self._lines.size
        return {
            "bytes": size,
            "digest": _digest_before(self._lines_path, size) or "",
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
        """Write what is held and close the files."""
        self._resumed = None
        try:
            self._write_held()
        finally:
            with contextlib.ExitStack() as closing:
                for file in (self._table, self._lines):
                    if file is not None:
                        closing.callback(file.close)
                self._lines = self._table = None

    @property
    def _lines_path(self) -> Path:
        return self.folder / "metrics.jsonl"

    def _counts(self) -> dict[str, Any]:
        latest = {name: value for name, value in self.latest.items() if isinstance(value, WRITTEN_AS_THEY_ARE)}
        return {"latest": latest, "runs": dict(self.runs)}

    def _go_on(self) -> None:
        """Cut the files to where a checkpoint has found them, if they are the same."""
        state, held = self._resumed, self._held
        if state is None and not self._starts_over:
            return
        self._held = []
        self.close()
        if self._starts_over:
            self._starts_over = False
            self._lines_path.unlink(missing_ok=True)
            (self.folder / "metrics.csv").unlink(missing_ok=True)
        elif state is not None and _digest_before(self._lines_path, state["bytes"]) == state["digest"]:
            with self._lines_path.open("rb+") as lines:
                lines.truncate(state["bytes"])
            Table.cut(self.folder / "metrics.csv", state["table"]["rows"])
            _, table = self._open()
            table.go_on(state["table"])
        self._held = held
        self._write_held()

    def _write_held(self) -> None:
        held, self._held = self._held, []
        for plain, step in held:
            self._write(plain, step)

    def _open(self) -> tuple[WholeLines, Table]:
        """Return the two files, opened if they are not yet."""
        if self._lines is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lines = WholeLines(self._lines_path)
        if self._table is None:
            self._table = Table(self.folder / "metrics.csv")
        return self._lines, self._table


def _digest_before(path: Path, size: int) -> str | None:
    """Return a digest of the last bytes before `size`; None: the file is shorter, or not there."""
    if not path.is_file() or path.stat().st_size < size:
        return None
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
        if is_good and name == "table.row":
            is_good = not part or "step" in part
        if not is_good:
            raise ArgumentError(f"{name}={part!r} in the state of RunFiles is nothing that it has saved")


_STATE: dict[str, type] = {
    "bytes": int,
    "digest": str,
    "table": dict,
    "table.rows": int,
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
