"""Files that grow by whole lines. If the disk is full, lines wait; no partial line is left behind."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

MOST_DUE_BYTES = 2**18
"""How much of a file may wait: each checkpoint holds all of it, and its JSON must not grow without bound."""

WRITTEN_AS_THEY_ARE = (int, float, str, type(None))
"""Types of values that are saved as they are; others are saved as text."""

_DIGESTED_BYTES = 4096
_INDENTATION = 16  # roughly a checkpoint's overhead for a value
_Item = TypeVar("_Item", str, dict[str, Any])


class _WholeLines(ABC, Generic[_Item]):
    """A file that is opened when something is written to it; `due` waits to be written, `lost` is how many never will.

    If the last line of a file has no end, because the machine was switched off, the next one starts on a line of its
    own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.due: deque[_Item] = deque()  # the oldest first
        self.lost = 0
        self._due_bytes = 0
        self._file: io.FileIO | None = None
        self._owed = b""

    @property
    def size(self) -> int:
        """Return how many bytes are written; 0 while the file is closed."""
        return 0 if self._file is None else os.fstat(self._file.fileno()).st_size

    @property
    def unwritten(self) -> int:
        """Return how many items are due or lost."""
        return len(self.due) + self.lost

    def add(self, *items: _Item) -> None:
        """Queue items to be written after those that are due."""
        self.due.extend(items)
        self._due_bytes += sum(map(_weight, items))

    def flush(self) -> None:
        """Write what is due, and drop the oldest of what can't be written and takes more than `MOST_DUE_BYTES`."""
        try:
            self._open()
            while self.due:
                self._write(self.due[0])
                self._drop_oldest()  # only now: what raises above stays due
        finally:
            while self._due_bytes > MOST_DUE_BYTES:
                self._drop_oldest()
                self.lost += 1

    def close(self) -> None:
        """Write what is due and close the file."""
        try:
            if self.due:
                self.flush()
        finally:
            self._let_go()

    @abstractmethod
    def _write(self, item: _Item) -> None:
        """Write one item."""

    def _append(self, line: bytes) -> None:
        """Write a line, which ends with its line feed; if that fails, none of it is in the file."""
        file = self._open()
        before, rest = self.size, memoryview(self._owed + line)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except BaseException:
            if self.size > before:
                file.truncate(before)
            raise
        self._owed = b""

    def _open(self) -> io.FileIO:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = io.FileIO(self.path, "a+")
            if self._file.seek(0, os.SEEK_END):
                self._file.seek(-1, os.SEEK_END)
                self._owed = b"" if self._file.read(1) == b"\n" else b"\n"
        return self._file

    def _let_go(self) -> None:
        file, self._file, self._owed = self._file, None, b""
        if file is not None:
            file.close()

    def _drop_oldest(self) -> None:
        self._due_bytes -= _weight(self.due.popleft())


class Lines(_WholeLines[str]):
    """A file of lines."""

    def position(self) -> dict[str, Any]:
        """Return how far the file is written, how it ends there, and what is due and lost."""
        size = self.size
        return {"bytes": size, "digest": self._digest_before(size), "due": list(self.due), "lost": self.lost}

    def holds(self, position: Mapping[str, Any]) -> bool:
        """Does the file on disk start like the one that had this position?"""
        size, there = position["bytes"], self.path.stat().st_size if self.path.is_file() else 0
        return (there >= size if size else not there) and self._digest_before(size) == position["digest"]

    def cut(self, position: Mapping[str, Any]) -> None:
        """Remove what the closed file holds beyond a position, and continue from there."""
        if position["bytes"]:
            os.truncate(self.path, position["bytes"])
        self.add(*position["due"])
        self.lost = position["lost"]

    def _write(self, item: str) -> None:
        self._append(f"{item}\n".encode())

    def _digest_before(self, size: int) -> str:
        if not size:
            return ""
        with self.path.open("rb") as file:
            file.seek(max(0, size - _DIGESTED_BYTES))
            return hashlib.sha256(file.read(min(size, _DIGESTED_BYTES))).hexdigest()


class Table(_WholeLines[dict[str, Any]]):
    """A CSV file with one row a step, whose columns may grow; a row is due when the next one begins, or at close."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._columns = ["step"]
        self._rows = 0
        self._row: dict[str, Any] = {}

    def position(self) -> dict[str, Any]:
        """Return how many rows are written, those that are due, how many are lost, and the row that is not due yet."""
        return {"rows": self._rows, "due": list(self.due), "lost": self.lost, "row": self._row}

    def cut(self, position: Mapping[str, Any]) -> None:
        """Remove the rows that the closed file holds beyond a position, and continue from there."""
        if self.path.exists():
            self._replace(list(itertools.islice(self._read(), 1 + position["rows"])))
        self.add(*position["due"])
        self.lost, self._row = position["lost"], dict(position["row"])

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Add values to the row of a step; a value that the row already has starts a new row."""
        if self._row and (self._row["step"] != step or not values.keys().isdisjoint(self._row)):
            self._finish_row()
        said = {n: value if isinstance(value, WRITTEN_AS_THEY_ARE) else str(value) for n, value in values.items()}
        self._row = {**self._row, **said, "step": step}

    def close(self) -> None:
        """Write what is due, and the row that is not due yet, and close the file."""
        self._finish_row()
        super().close()

    def _finish_row(self) -> None:
        if self._row:
            self.add(self._row)
            self._row = {}

    def _open(self) -> io.FileIO:
        if self._file is not None:
            return self._file
        file = super()._open()
        rows = self._read()
        self._columns = next(rows, ["step"])
        self._rows = sum(1 for _ in rows)
        return file

    def _write(self, item: dict[str, Any]) -> None:
        new = [name for name in item if name not in self._columns]
        if new or not self.size:
            columns = [*self._columns, *new]
            rows = itertools.islice(self._read(), 1, None)
            self._replace([columns, *(row + [""] * (len(columns) - len(row)) for row in rows)])
            self._open()
        text = io.StringIO(newline="")
        csv.writer(text).writerow([item.get(name, "") for name in self._columns])
        self._append(text.getvalue().encode(errors="backslashreplace"))
        self._rows += 1

    def _read(self) -> Iterator[list[str]]:
        with self.path.open(newline="", encoding="utf-8") as file:
            yield from csv.reader(file)

    def _replace(self, rows: Iterable[list[str]]) -> None:
        """Replace the file atomically: an interruption leaves the old one or the new one."""
        beside = self.path.with_suffix(".csv.new")
        try:
            with beside.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows(rows)
            self._let_go()  # it would append to the old file, and Windows can't replace an open one
            beside.replace(self.path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


def _weight(item: str | dict[str, Any]) -> int:
    """Return about how many bytes of a checkpoint a line or a row takes."""
    if isinstance(item, str):
        return len(item) + _INDENTATION
    return sum(len(name) + len(str(value)) + _INDENTATION for name, value in item.items())
