"""The files that a run has logged, in its folder `files/<step>/<name>`. Knows no page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..files import why_not
from ..logger import FILE_NAME, MOST_FILE_BYTES
from .files import entries_in

FOLDER = "files"


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
    place = folder / FOLDER
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


_STEP = re.compile(r"[0-9]{1,18}")


def _size_of(path: Path) -> int | None:
    try:
        return None if why_not(path, MOST_FILE_BYTES) is not None else path.lstat().st_size
    except OSError:  # it is gone by now
        return None
