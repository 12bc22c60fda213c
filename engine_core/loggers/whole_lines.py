"""Files that grow line by line: what a full disk does not take whole waits for its turn."""

from __future__ import annotations

import csv
import io
import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["WRITTEN_AS_THEY_ARE", "Table", "WholeLines"]

WRITTEN_AS_THEY_ARE = (int, float, str, type(None))
"""Types of the values that need not become text in a checkpoint."""


class WholeLines:
    """A file to which lines are appended, each in the file when `add` returns.

    A line for which there is no room is kept and written before the next one; no half of it is left meanwhile. A last
    line whose end is missing, as a machine that was switched off may leave one, is not merged with the next.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._kept = b"" if _ends_with_a_line(path) else b"\n"

    @property
    def size(self) -> int:
        """Return how many bytes are written."""
        return self._file.tell()

    def add(self, line: bytes = b"") -> None:
        """Write what is kept, and a line, which ends with its line feed."""
        self._kept += line
        written = 0
        try:
            while written < len(self._kept):
                written += self._file.write(self._kept[written:])
        except BaseException:
            whole, self._kept = self._kept, self._kept[written:]
            if self._has_taken_away(written):
                self._kept = whole
            raise
        self._kept = b""

    def close(self) -> None:
        """Write what is kept and close the file."""
        try:
            if self._kept != b"\n":
                self.add()
        finally:
            self._file.close()

    def _has_taken_away(self, written: int) -> bool:
        """Remove the last bytes, unless somebody else has written since."""
        end = self._file.tell()
        if written and os.fstat(self._file.fileno()).st_size != end:
            return False
        if written:
            self._file.truncate(end - written)
            self._file.seek(end - written)
        return True


class Table:
    """A CSV file with one row a step, whose columns may grow."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns = ["step"]
        self._rows = 0
        self._row: dict[str, Any] = {}
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                reader = csv.reader(file)
                self._columns = next(reader, self._columns)
                self._rows = sum(1 for _ in reader)
        self._lines = WholeLines(path)

    def position(self) -> dict[str, Any]:
        """Return how many rows are written, and the one that is held."""
        row = {n: value if isinstance(value, WRITTEN_AS_THEY_ARE) else str(value) for n, value in self._row.items()}
        return {"rows": self._rows, "row": row}

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
        done: dict[str, Any] = {}
        if self._row and (self._row["step"] != step or not values.keys().isdisjoint(self._row)):
            done, self._row = self._row, {}
        self._row = {**self._row, **values, "step": step}
        if done:
            self._write(done)

    def close(self) -> None:
        """Write the row that is held."""
        row, self._row = self._row, {}
        try:
            if row:
                self._write(row)
        finally:
            self._lines.close()

    def _write(self, row: Mapping[str, Any]) -> None:
        new = [name for name in row if name not in self._columns]
        if new or not self._lines.size:
            self._widen([*self._columns, *new])
        self._rows += 1
        self._lines.add(_line([row.get(name, "") for name in self._columns]))

    def _widen(self, columns: list[str]) -> None:
        """Write the file anew with more columns, in one stroke: an interruption leaves the old one or the new one."""
        self._lines.add()
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
        self._lines.close()
        beside.replace(self._path)
        self._columns = columns
        self._lines = WholeLines(self._path)


def _line(cells: list[Any]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerow(cells)
    return text.getvalue().encode()


def _ends_with_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return True
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"
