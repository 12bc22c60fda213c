"""Files of a run read with care: no link is followed, nothing large fills the memory, damage is counted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import ArgumentError
from ..files import MOST_BYTES_OF_JSON, read_json, why_not
from ..messages import counted

MOST_BYTES = 2**30
"""How large a file of lines may be."""
MOST_BYTES_OF_A_LINE = 2**20
LARGEST = 1e15
"""The largest step, time or count that is believed."""
_BYTES_COMPARED = 4096
"""How much of the latest line shows whether a file is still the one that was read."""


def entries_in(folder: Path) -> list[Path]:
    """Return what is in a folder; nothing if it can't be read."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def read_mapping(file: Path, warnings: list[str]) -> dict[str, Any]:
    """Return the mapping in a JSON file; if there is none, it is empty, and a warning says what is wrong."""
    problem = why_not(file, MOST_BYTES_OF_JSON)
    if problem is None:
        try:
            content = read_json(file)
        except ArgumentError:
            problem = f"{file.name} is damaged and is left out"
        else:
            if isinstance(content, dict):
                return content
            problem = f"{file.name} is damaged and is left out: it holds no mapping"
    if problem:
        warnings.append(problem)
    return {}


class LineReader:
    r"""Reads a file of JSON lines again and again, each whole line once.

    One at the end that is being written is left out. A line without a `step` and `seconds` that can be is damaged.

    Args:
        file: it may be missing, and come later.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp(), "metrics.jsonl")
        >>> reader = LineReader(file)
        >>> _ = file.write_text('{"step": 1, "seconds": 0.5}\n{"step": 2, ')
        >>> reader.read([])
        (True, [{'step': 1, 'seconds': 0.5}])
        >>> _ = file.write_text('{"step": 1, "seconds": 0.5}\n{"step": 2, "seconds": 1}\n')
        >>> reader.read([])
        (False, [{'step': 2, 'seconds': 1}])
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._begin()

    def _begin(self) -> None:
        self._position, self._end, self._damaged = 0, b"", 0

    def read(self, warnings: list[str]) -> tuple[bool, list[dict[str, Any]]]:
        """Return the lines that have come since, and whether they are all lines of the file.

        They are where the file was cut or replaced, as by a run that is resumed, and the first time.
        """
        file, lines, is_anew = self._file, list[dict[str, Any]](), self._position == 0
        problem = why_not(file, MOST_BYTES)
        if problem is None:
            try:
                with file.open("rb") as opened:
                    if not self._continues(opened):
                        self._begin()
                        is_anew = True
                    opened.seek(self._position)
                    for line in self._new_lines(opened):
                        lines.append(line)  # those before an error are read
            except OSError as error:
                problem = f"{file.name} can't be read: {error.strerror}"
        elif self._position:
            self._begin()
            is_anew = True
        if problem:
            warnings.append(problem)
        if self._damaged:
            told = counted(self._damaged, "line", "lines")
            warnings.append(f"{told} of {file.name} can't be read and {'is' if self._damaged == 1 else 'are'} left out")
        return is_anew, lines

    def _continues(self, opened: BinaryIO) -> bool:
        """Is what was read last still there?"""
        opened.seek(self._position - len(self._end))
        return opened.read(len(self._end)) == self._end

    def _new_lines(self, opened: BinaryIO) -> Iterator[dict[str, Any]]:
        while (line := opened.readline(MOST_BYTES_OF_A_LINE)).endswith(b"\n") or len(line) == MOST_BYTES_OF_A_LINE:
            content = _parsed(line)
            while len(line) == MOST_BYTES_OF_A_LINE and not line.endswith(b"\n"):
                line, content = opened.readline(MOST_BYTES_OF_A_LINE), None
            self._position, self._end = opened.tell(), line[-_BYTES_COMPARED:]
            if content is None:
                self._damaged += 1
            else:
                yield content


def number_in(value: Any) -> float | None:
    """Return a finite number, or None for anything else.

    Example:
        >>> number_in(2), number_in(float("nan")), number_in(True), number_in("2")
        (2, None, None, None)
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer beyond any float
        return None


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    places = [number_in(content.get(key)) for key in ("step", "seconds")]
    return content if all(place is not None and abs(place) <= LARGEST for place in places) else None
