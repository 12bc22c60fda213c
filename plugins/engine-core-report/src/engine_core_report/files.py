"""Files of a run read with care: no link is followed, nothing large fills the memory, damage is counted.

What is in the folder beside values and events: the files that the run has logged, and its checkpoints, listed without
opening one.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from engine_core.errors import ArgumentError
from engine_core.files import MOST_BYTES_OF_JSON, read_json, why_not
from engine_core.logger import FILE_NAME, MOST_FILE_BYTES
from engine_core.manifest import NAME
from engine_core.messages import plural

LOGGED, SAVED = "files", "checkpoints"
"""The folders of what was logged, as `files/<step>/<name>`, and of checkpoints."""
_STEP = re.compile(r"[0-9]{1,18}")
_NAMED = re.compile(r"ep(\d{1,18})-ba(\d{1,18})")
_POINTER_BYTES = 64
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
            told = plural(self._damaged, "line", "lines")
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


@dataclass(frozen=True)
class LoggedFile:
    """A file that was logged.

    Args:
        size: in bytes.
    """

    name: str
    step: int
    path: Path
    size: int

    def read(self) -> bytes:
        """Return the content; empty if the file is gone by now."""
        if why_not(self.path, MOST_FILE_BYTES) is not None:
            return b""
        try:
            return self.path.read_bytes()
        except OSError:
            return b""


def list_logged_files(folder: Path) -> list[LoggedFile]:
    """Return the files of a run: the latest of each name, by name, and then those before, the latest first.

    No link is followed, and what `Logger.log_file` would refuse is passed over.
    """
    place = folder / LOGGED
    steps = [] if place.is_symlink() else [path for path in entries_in(place) if _STEP.fullmatch(path.name)]
    found = [
        LoggedFile(path.name, int(step.name), path, size)
        for step in steps
        if step.is_dir() and not step.is_symlink()
        for path in entries_in(step)
        if FILE_NAME.fullmatch(path.name) and (size := _size_of(path)) is not None
    ]
    latest = {file.name: file for file in sorted(found, key=lambda file: file.step)}
    before = {*found} - {*latest.values()}
    return [latest[name] for name in sorted(latest)] + sorted(before, key=lambda file: (-file.step, file.name))


def _size_of(path: Path) -> int | None:
    try:
        return None if why_not(path, MOST_FILE_BYTES) is not None else path.lstat().st_size
    except OSError:  # it is gone by now
        return None


@dataclass(frozen=True)
class Saved:
    """A checkpoint.

    Args:
        size: of all its files, in bytes.
        marks: `latest`, `best`, `damaged`, as far as they apply.
    """

    name: str
    epoch: int
    batch: int
    size: int
    marks: tuple[str, ...]


def list_checkpoints(folder: Path) -> list[Saved]:
    """Return the checkpoints of a run, the oldest first; a damaged one is listed and marked."""
    place = folder / SAVED
    if place.is_symlink():
        return []
    pointers = {name: _pointed(place / name) for name in ("latest", "best")}
    found = []
    for path in entries_in(place):
        named = _NAMED.fullmatch(path.name)
        if named is None or path.is_symlink() or not path.is_dir():
            continue
        manifest = read_mapping(path / NAME, [])
        sizes = _sizes(path)
        marks = [name for name, pointed in pointers.items() if pointed == path.name]
        marks += [] if _is_whole(manifest, sizes) else ["damaged"]
        epoch, batch = int(named[1]), int(named[2])
        attempt = manifest.get("attempt")
        place_in_time = (batch, attempt if type(attempt) is int else 0, epoch)
        found.append((place_in_time, Saved(path.name, epoch, batch, sum(sizes.values()), tuple(marks))))
    return [saved for _, saved in sorted(found, key=lambda entry: entry[0])]


def _sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of each file, also of those in `average`; a run that goes on may remove the folder meanwhile."""
    try:
        found = [*folder.iterdir(), *(() if (folder / "average").is_symlink() else folder.glob("average/*"))]
        return {
            p.relative_to(folder).as_posix(): p.lstat().st_size for p in found if not p.is_symlink() and p.is_file()
        }
    except OSError:
        return {}


def _is_whole(manifest: dict[str, Any], sizes: dict[str, int]) -> bool:
    """Is the manifest as it was written, and does each file have the size that it names? Tensors are not read."""
    files = manifest.get("files")
    if not isinstance(files, dict) or type(manifest.get("schema")) is not int:
        return False
    rest = {key: value for key, value in manifest.items() if key != "checksum"}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode("ascii")).hexdigest()
    named = {name: entry.get("bytes") if isinstance(entry, dict) else None for name, entry in files.items()}
    return digest == manifest.get("checksum") and all(sizes.get(name, -1) == size for name, size in named.items())


def _pointed(file: Path) -> str | None:
    if why_not(file, _POINTER_BYTES) is not None:
        return None
    try:
        return file.read_bytes().decode("ascii", "replace").strip()
    except OSError:
        return None
