"""A file that grows by whole lines, and a table made of it. If the disk is full, lines wait; no part of one is left."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ..files import replacing
from ..logger import VALUES, is_event

MOST_DUE_BYTES = 2**18
"""How much of a file may wait: each checkpoint holds all of it, and its JSON must not grow without bound."""

_DIGESTED_BYTES = 4096
_MOST_IN_A_CELL = 131_072 // 6  # Python's csv reads no longer cells by default, and writing takes 6 for a surrogate
_INDENTATION = 16  # roughly a checkpoint's overhead for a value
_OWN = ("kind", "seconds")
"""What lines have beside their step and their values."""


class Lines:
    """A file that is opened when something is written to it; `due` waits to be written, `lost` is how many never will.

    If the last line of a file has no end, because the machine was switched off, the next one starts on a line of its
    own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.due: deque[str] = deque()  # the oldest first
        self.lost = 0
        self._due_bytes = 0
        self._file: io.FileIO | None = None
        self._owed = b""

    @property
    def is_open(self) -> bool:
        """Has something been written since the file was closed?"""
        return self._file is not None

    @property
    def size(self) -> int:
        """Return how many bytes are written; 0 while the file is closed."""
        return 0 if self._file is None else os.fstat(self._file.fileno()).st_size

    @property
    def unwritten(self) -> int:
        """Return how many lines are due or lost."""
        return len(self.due) + self.lost

    def add(self, *lines: str) -> None:
        """Queue lines to be written after those that are due."""
        self.due.extend(lines)
        self._due_bytes += sum(map(_weight, lines))

    def flush(self) -> None:
        """Write what is due, and drop the oldest of what can't be written and takes more than `MOST_DUE_BYTES`."""
        try:
            self._open()
            while self.due:
                self._append(f"{self.due[0]}\n".encode())
                self._drop_oldest()  # only now: what raises above stays due
        finally:
            while self._due_bytes > MOST_DUE_BYTES:
                self._drop_oldest()
                self.lost += 1

    def close(self) -> None:
        """Write what is due and close the file.

        Raises:
            OSError: if that fails, or if the file is no longer in its place.
        """
        try:
            if self.due:
                self.flush()
            if self._file is not None and not os.path.samestat(os.fstat(self._file.fileno()), self.path.stat()):
                raise FileNotFoundError(errno.ENOENT, "another file has taken its place", str(self.path))
        finally:
            file, self._file, self._owed = self._file, None, b""
            if file is not None:
                file.close()

    def position(self) -> dict[str, Any]:
        """Return how far the file is written, how it ends there, and what is due and lost."""
        size = self.size
        return {"bytes": size, "digest": self._digest_before(size), "due": list(self.due), "lost": self.lost}

    def holds(self, position: Mapping[str, Any]) -> bool:
        """Does the file on disk start like the one that had this position?"""
        size, there = position["bytes"], self.path.stat().st_size if self.path.is_file() else 0
        return (there >= size if size else not there) and self._digest_before(size) == position["digest"]

    def cut(self, position: Mapping[str, Any]) -> None:
        """Continue the closed file from a position: values beyond it go, and events, which tell of attempts, stay."""
        due, size = position["due"], position["bytes"]
        if self.path.is_file() and self.path.stat().st_size > size:
            events = dict.fromkeys(line for line, told in _read(self.path, size) if is_event(told))
            with self.path.open("r+b") as file:  # over the lines that go, so that a kill loses none
                file.seek(size)
                file.writelines(f"{line}\n".encode() for line in events)
                file.truncate()
            due = [line for line in due if line not in events]
        self.add(*due)
        self.lost = position["lost"]

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

    def _drop_oldest(self) -> None:
        self._due_bytes -= _weight(self.due.popleft())

    def _digest_before(self, size: int) -> str:
        if not size:
            return ""
        # The open one, which may have been moved.
        with self.path.open("rb") if self._file is None else nullcontext(self._file) as file:
            file.seek(max(0, size - _DIGESTED_BYTES))
            return hashlib.sha256(file.read(min(size, _DIGESTED_BYTES))).hexdigest()


def write_table(lines: Path, table: Path) -> None:
    """Write the values in a file of lines as CSV: one row a step, and another one for a name that comes again.

    Raises:
        OSError: if it can't be written; then it is as it was before.
    """
    if not lines.is_file():  # nothing, or a device, which may have no end
        raise FileNotFoundError(errno.ENOENT, "there is no such file", str(lines))
    columns = dict.fromkeys(["step"])
    for row in _rows(lines):
        columns.update(dict.fromkeys(row))
    with replacing(table) as beside, beside.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(_rows(lines))


def _rows(lines: Path) -> Iterator[dict[str, Any]]:
    row: dict[str, Any] = {}
    for _, told in _read(lines):
        if is_event(told) or "step" not in told:
            continue
        own = _OWN if told.get("kind") == VALUES else _OWN[1:]  # older versions gave values no kind
        values = {_cell(k): "nan" if v is None else _cell(v) for k, v in told.items() if k not in own}
        step = values.pop("step")
        if row and (row["step"] != step or not values.keys().isdisjoint(row)):
            yield row
            row = {}
        row = {**row, "step": step, **values}
    if row:
        yield row


def _cell(value: Any) -> Any:
    length = len(str(value))
    return value if length <= _MOST_IN_A_CELL else f"{length:,} characters, see metrics.jsonl"


def _read(lines: Path, position: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each line with what it holds, but for those that are damaged, as by a crash of the machine."""
    with lines.open("rb") as file:
        file.seek(position)
        for line in file:
            try:
                text = line.decode()
                told = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(told, dict):
                yield text.rstrip("\n"), told


def _weight(line: str) -> int:
    """Return about how many bytes of a checkpoint a line takes."""
    return len(line) + _INDENTATION
