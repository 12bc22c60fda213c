"""Keep what a run logs in files: `metrics.jsonl` and `metrics.csv`. Knows no Trainer."""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import math
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..errors import ArgumentError
from ..logger import Logger, LoggerDestination

if TYPE_CHECKING:
    from ..state import State
    from ..trace import Traces

__all__ = ["RunFiles", "finite"]

_DIGESTED_BYTES = 4096


class RunFiles(LoggerDestination):
    """Writes every logged value to `folder/metrics.jsonl`, and one row a step to `folder/metrics.csv`.

    A line is in the file when `log_metrics` returns; the CSV's row when the next step begins, or at close. Columns
    that come up later are added to the CSV. Values that are not finite are `null` in JSON. Files that are there
    already are continued.

    Args:
        folder: made when the first line is written.

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
        self._lines: IO[str] | None = None
        self._table: _Table | None = None
        self._resumed: Mapping[str, Any] | None = None
        self._held: list[tuple[dict[str, Any], int]] = []

    def init(self, state: State, logger: Logger) -> None:
        """Count the seconds from here."""
        self._started_s = time.perf_counter()

    def fit_start(self, state: State, logger: Logger) -> None:
        """Go on in the files of a resumed run, as no saver has found that another one still writes them."""
        self._go_on()

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write a line; before the fit of a resumed run hold it back."""
        plain = {name: _plain(value) for name, value in metrics.items()}
        self.latest.update(plain)
        if self._resumed is not None:
            self._held.append((plain, step))
        else:
            self._write(plain, step)

    def _write(self, plain: dict[str, Any], step: int) -> None:
        if self._lines is None or self._table is None:
            self._open()
        assert self._lines is not None
        assert self._table is not None
        seconds = round(time.perf_counter() - self._started_s, 6)
        self._lines.write(json.dumps({"step": step, "seconds": seconds, **finite(plain)}, default=str) + "\n")
        self._table.add(step, plain)

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
        if self._lines is None or self._table is None:
            return {}
        self._lines.flush()
        size = self._lines.tell()
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
        self._write_held()
        lines, self._lines = self._lines, None
        table, self._table = self._table, None
        if lines is not None:
            lines.close()
        if table is not None:
            table.close()

    @property
    def _lines_path(self) -> Path:
        return self.folder / "metrics.jsonl"

    def _counts(self) -> dict[str, Any]:
        latest = {name: value for name, value in self.latest.items() if isinstance(value, _WRITTEN_AS_THEY_ARE)}
        return {"latest": latest, "runs": dict(self.runs)}

    def _go_on(self) -> None:
        """Cut the files to where a checkpoint has found them, if they are the same."""
        state, held = self._resumed, self._held
        if state is None:
            return
        self._held = []
        self.close()
        if _digest_before(self._lines_path, state["bytes"]) == state["digest"]:
            with self._lines_path.open("rb+") as lines:
                lines.truncate(state["bytes"])
            _Table.cut(self.folder / "metrics.csv", state["table"]["rows"])
            self._open()
            assert self._table is not None
            self._table.go_on(state["table"])
        self._held = held
        self._write_held()

    def _write_held(self) -> None:
        held, self._held = self._held, []
        for plain, step in held:
            self._write(plain, step)

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lines = self._lines_path.open("a", buffering=1, encoding="utf-8")
        self._table = _Table(self.folder / "metrics.csv")


class _Table:
    """A CSV file with one row a step, whose columns may grow."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns = ["step"]
        self._rows = 0
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                reader = csv.reader(file)
                self._columns = next(reader, self._columns)
                self._rows = sum(1 for _ in reader)
        self._row: dict[str, Any] = {}
        self._file = self._open()

    def position(self) -> dict[str, Any]:
        """Return how many rows are written, and the one that is held."""
        return {"rows": self._rows, "row": _plain_row(self._row)}

    def go_on(self, position: Mapping[str, Any]) -> None:
        """Go on from a position, in a file that was cut to it."""
        self._rows, self._row = position["rows"], dict(position["row"])

    @staticmethod
    def cut(path: Path, rows: int) -> None:
        """Leave the first rows of a table."""
        if not path.exists():
            return
        with path.open(newline="", encoding="utf-8") as file:
            kept = list(itertools.islice(csv.reader(file), 1 + rows))
        beside = path.with_suffix(".csv.new")
        with beside.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(kept)
        beside.replace(path)

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Add values to the row of a step; a value that the row has already begins another."""
        if self._row and (self._row["step"] != step or not values.keys().isdisjoint(self._row)):
            self._write()
        self._row = {**self._row, **values, "step": step}

    def close(self) -> None:
        """Write the row that is held."""
        if self._row:
            self._write()
        self._file.close()

    def _open(self) -> IO[str]:
        file = self._path.open("a", buffering=1, newline="", encoding="utf-8")
        if not file.tell():
            csv.writer(file).writerow(self._columns)
        return file

    def _write(self) -> None:
        new = [name for name in self._row if name not in self._columns]
        if new:
            self._widen([*self._columns, *new])
        row, self._row = self._row, {}
        self._rows += 1
        csv.writer(self._file).writerow([row.get(name, "") for name in self._columns])

    def _widen(self, columns: list[str]) -> None:
        """Write the file anew with more columns, in one stroke: an interruption leaves the old one or the new one."""
        beside = self._path.with_suffix(".csv.new")
        with (
            self._path.open(newline="", encoding="utf-8") as old,
            beside.open("w", newline="", encoding="utf-8") as new,
        ):
            rows = csv.reader(old)
            next(rows, None)
            table = csv.writer(new)
            table.writerow(columns)
            table.writerows(row + [""] * (len(columns) - len(row)) for row in rows)
        self._file.close()
        beside.replace(self._path)
        self._columns = columns
        self._file = self._open()


_WRITTEN_AS_THEY_ARE = (int, float, str, type(None))


def _plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, _WRITTEN_AS_THEY_ARE) else str(value) for name, value in row.items()}


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
