"""Keep what a run logs in files: `metrics.jsonl` and `metrics.csv`. Knows no Trainer."""

from __future__ import annotations

import csv
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

    def init(self, state: State, logger: Logger) -> None:
        """Count the seconds from here."""
        self._started_s = time.perf_counter()

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write a line."""
        if self._lines is None or self._table is None:
            self._open()
        assert self._lines is not None
        assert self._table is not None
        plain = {name: _plain(value) for name, value in metrics.items()}
        seconds = round(time.perf_counter() - self._started_s, 6)
        self._lines.write(json.dumps({"step": step, "seconds": seconds, **finite(plain)}, default=str) + "\n")
        self._table.add(step, plain)
        self.latest.update(plain)

    def log_traces(self, traces: Traces) -> None:
        """Count in `runs` how often each algorithm ran at each event, as in `Noise/AFTER_DATALOADER`."""
        runs = self.runs
        for name, trace in traces.items():
            if trace.run:
                runs[name] += 1

    def state_dict(self) -> dict[str, Any]:
        """Return how far the files are written, and what is not written yet."""
        if self._lines is None or self._table is None:
            return {}
        self._lines.flush()
        return {
            "bytes": self._lines.tell(),
            "table": self._table.position(),
            "latest": {name: value for name, value in self.latest.items() if isinstance(value, (int, float, str))},
            "runs": dict(self.runs),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take away what was logged after the checkpoint, as the resumed run logs it again."""
        path = self.folder / "metrics.jsonl"
        self.latest, self.runs = dict(state["latest"]), Counter(state["runs"])
        if path.exists() and path.stat().st_size >= state["bytes"]:
            with path.open("rb+") as lines:
                lines.truncate(state["bytes"])
            _Table.cut(self.folder / "metrics.csv", state["table"]["rows"])
            self._open()
            assert self._table is not None
            self._table.go_on(state["table"])

    def close(self, state: State | None = None, logger: Logger | None = None) -> None:
        """Write what is held and close the files."""
        lines, self._lines = self._lines, None
        table, self._table = self._table, None
        if lines is not None:
            lines.close()
        if table is not None:
            table.close()

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lines = (self.folder / "metrics.jsonl").open("a", buffering=1, encoding="utf-8")
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


def _plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, (int, float, str)) else str(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    """Return a tensor's or an array's numbers as Python's own."""
    return value.tolist() if hasattr(value, "tolist") else value


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with None for what JSON has no number for."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
