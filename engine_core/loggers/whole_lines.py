"""Files that grow line by line: what a full disk does not take whole waits for its turn."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

__all__ = ["MOST_DUE_BYTES", "WRITTEN_AS_THEY_ARE", "Lines", "Table", "WholeLines"]

MOST_DUE_BYTES = 2**18
"""How much a file may leave for the next time: it is in each checkpoint, whose JSON must not grow without a bound."""

_INDENTATION = 16
"""About what a checkpoint spends on the place of a value."""

_Item = TypeVar("_Item", str, dict[str, Any])

WRITTEN_AS_THEY_ARE = (int, float, str, type(None))
"""Types of the values that need not become text in a checkpoint."""


class WholeLines:
    """A file to which lines are appended, each in the file when `add` returns.

    A line for which there is no room is refused, and no half of it is left. A last line whose end is missing, as a
    machine that was switched off may leave one, is not merged with the next.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._owed = b"" if _ends_with_a_line(path) else b"\n"

    @property
    def size(self) -> int:
        """Return how many bytes are written."""
        return self._file.tell()

    def add(self, line: bytes = b"") -> None:
        """Write a line, which ends with its line feed.

        Raises:
            OSError: and nothing of the line is in the file. If somebody else has written behind its half, the line is
                taken nevertheless, and the rest of it comes before the next one.
        """
        whole, written = self._owed + line, 0
        try:
            while written < len(whole):
                written += self._file.write(whole[written:])
        except BaseException as error:
            if self._has_taken_away(written):
                raise
            self._owed = whole[written:]
            if not isinstance(error, OSError):
                raise
        else:
            self._owed = b""

    def close(self) -> None:
        """Close the file; half a line that stands in it gets its rest."""
        try:
            if self._owed != b"\n":
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


class Due(Generic[_Item]):
    """What could not be written yet, the oldest first; `lost` counts what was let go."""

    def __init__(self) -> None:
        self.items: deque[_Item] = deque()
        self.lost = 0
        self._weights: deque[int] = deque()  # of the first items; what is written at once is never weighed

    @property
    def unwritten(self) -> int:
        """Return how many are due or lost."""
        return len(self.items) + self.lost

    def extend(self, items: Iterable[_Item]) -> None:
        """Add what is younger than the rest."""
        self.items.extend(items)

    def done(self) -> None:
        """Take the oldest away, which is written."""
        self.items.popleft()
        if self._weights:
            self._weights.popleft()

    def bound(self) -> None:
        """Let the oldest go until the others take at most `MOST_DUE_BYTES` in a checkpoint."""
        new = itertools.islice(self.items, len(self._weights), None)
        self._weights.extend([_weight(item) for item in new])
        excess = sum(self._weights) - MOST_DUE_BYTES
        while excess > 0:
            excess -= self._weights[0]
            self.done()
            self.lost += 1


class Lines:
    """A file of lines that is opened when there is something to write; `due` holds what could not be written yet."""

    def __init__(self, path: Path) -> None:
        self.due = Due[str]()
        self._path = path
        self._file: WholeLines | None = None

    @property
    def size(self) -> int:
        """Return how many bytes are written; 0 while the file is closed."""
        return 0 if self._file is None else self._file.size

    def open(self) -> WholeLines:
        """Return the file, opened if it is not yet."""
        if self._file is None:
            self._file = WholeLines(self._path)
        return self._file

    def flush(self) -> None:
        """Write what is due, the oldest first."""
        try:
            file = self.open()
            while self.due.items:
                file.add(f"{self.due.items[0]}\n".encode())
                self.due.done()
        finally:
            self.due.bound()

    def close(self) -> None:
        """Write what is due and close the file."""
        try:
            if self.due.items:
                self.flush()
        finally:
            file, self._file = self._file, None
            if file is not None:
                file.close()


class Table:
    """A CSV file with one row a step, whose columns may grow; `due` holds rows that could not be written yet."""

    def __init__(self, path: Path) -> None:
        self.due = Due[dict[str, Any]]()
        self._path = path
        self._columns = ["step"]
        self._rows = 0
        self._row: dict[str, Any] = {}
        self._file: WholeLines | None = None

    def position(self) -> dict[str, Any]:
        """Return how many rows are written, those that are due, how many are lost, and the row that is held."""
        return {
            "rows": self._rows,
            "due": [_as_saved(row) for row in self.due.items],
            "lost": self.due.lost,
            "row": _as_saved(self._row),
        }

    def go_on(self, position: Mapping[str, Any]) -> None:
        """Go on from a position, in a file that is cut to it."""
        self.cut(position["rows"])
        self.due.extend(dict(row) for row in position["due"])
        self.due.lost = position["lost"]
        self._row = dict(position["row"])

    def cut(self, rows: int) -> None:
        """Leave the first rows of the file, which is closed."""
        if self._path.exists():
            with self._path.open(newline="", encoding="utf-8") as file:
                kept = list(itertools.islice(csv.reader(file), 1 + rows))
            self._replace(kept)

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Add values to the row of a step; a value that the row has already begins another, and the row is due."""
        if self._row and (self._row["step"] != step or not values.keys().isdisjoint(self._row)):
            self._finish()
        self._row = {**self._row, **values, "step": step}

    def open(self) -> WholeLines:
        """Return the file, opened if it is not yet."""
        if self._file is None:
            self._file = WholeLines(self._path)
            with self._path.open(newline="", encoding="utf-8") as file:
                reader = csv.reader(file)
                self._columns = next(reader, ["step"])
                self._rows = sum(1 for _ in reader)
        return self._file

    def flush(self) -> None:
        """Write the rows that are due, the oldest first."""
        try:
            self._write_due()
        finally:
            self.due.bound()

    def close(self) -> None:
        """Write what is due, and the row that is held, and close the file."""
        self._finish()
        try:
            if self.due.items:
                self.flush()
        finally:
            self._let_go()

    def _write_due(self) -> None:
        file = self.open()
        while self.due.items:
            row = self.due.items[0]
            new = [name for name in row if name not in self._columns]
            if new or not file.size:
                self._widen(file, [*self._columns, *new])
                file = self.open()
            file.add(_line([row.get(name, "") for name in self._columns]))
            self._rows += 1
            self.due.done()

    def _finish(self) -> None:
        row, self._row = self._row, {}
        if row:
            self.due.extend([row])

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _widen(self, file: WholeLines, columns: list[str]) -> None:
        """Write the file anew with more columns."""
        file.add()
        with self._path.open(newline="", encoding="utf-8") as old:
            rows = csv.reader(old)
            next(rows, None)
            wider = [columns, *(row + [""] * (len(columns) - len(row)) for row in rows)]
        self._replace(wider)

    def _replace(self, rows: Iterable[list[str]]) -> None:
        """Write the file anew in one stroke: an interruption leaves the old one or the new one."""
        beside = self._path.with_suffix(".csv.new")
        try:
            with beside.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows(rows)
            self._let_go()
            beside.replace(self._path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


def _weight(item: str | dict[str, Any]) -> int:
    """Return about how many bytes of a checkpoint a line or a row takes."""
    if isinstance(item, str):
        return len(json.dumps(item)) + _INDENTATION
    return len(json.dumps(_as_saved(item))) + _INDENTATION * len(item)


def _as_saved(row: Mapping[str, Any]) -> dict[str, Any]:
    return {n: value if isinstance(value, WRITTEN_AS_THEY_ARE) else str(value) for n, value in row.items()}


def _line(cells: list[Any]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerow(cells)
    return text.getvalue().encode(errors="backslashreplace")


def _ends_with_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return True
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"
