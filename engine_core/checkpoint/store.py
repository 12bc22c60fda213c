"""A folder of checkpoints: their names, which is the latest, how many stay, and whose the folder is."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from ..errors import CheckpointError
from ..time import Timestamp
from .files import MANIFEST, Content, sync_folder, write_content

__all__ = ["LATEST", "RUN_CHECKPOINTS", "Store", "resolve"]

LATEST = "latest"
RUN_CHECKPOINTS = "checkpoints"
"""Where a run of the command line saves, in its folder."""

_LOCK = ".lock"
_NAME = re.compile(r"ep(\d+)-ba(\d+)")


class Store:
    """A saver's folder: `ep<E>-ba<B>/` for each checkpoint, and the text file `latest` with the name of one.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> store = Store(folder)
        >>> _ = store.save(Timestamp(epoch=1, batch=8), Content(model={}, state={}, tensors={}))
        >>> resolve(folder).name, [path.name for path in store.saved()]
        ('ep1-ba8', ['ep1-ba8'])
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: IO[str] | None = None

    def lock(self) -> None:
        """Take the folder for this process, until `unlock` or its end.

        Raises:
            CheckpointError: if another live run has it.
            OSError: if nothing can be written there.
        """
        if self._lock is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        file = (self.folder / _LOCK).open("a+", encoding="ascii")
        try:
            _lock_file(file)
        except OSError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            file.close()
            raise CheckpointError(
                f"{str(self.folder)!r} is in use by another run (process {owner}): let that one end, or save elsewhere"
            ) from None
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        self._lock = file
        for begun in self.folder.glob(".ep*.new"):  # of a process that was killed
            shutil.rmtree(begun, ignore_errors=True)

    def unlock(self) -> None:
        """Let others have the folder."""
        file, self._lock = self._lock, None
        if file is not None:
            file.close()

    @staticmethod
    def name_of(at: Timestamp) -> str:
        """Return the name of the checkpoint of a position."""
        return f"ep{at.epoch}-ba{at.batch}"

    def save(self, at: Timestamp, content: Content) -> Path:
        """Write a checkpoint, and then say that it is the latest; return its folder."""
        path = self.folder / self.name_of(at)
        write_content(path, content)
        beside = self.folder / f".{LATEST}.new"
        with beside.open("w", encoding="ascii") as file:
            file.write(f"{path.name}\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.folder / LATEST)
        sync_folder(self.folder)
        return path

    def saved(self) -> list[Path]:
        """Return the checkpoints in the folder, the one of the earliest position first."""
        if not self.folder.is_dir():
            return []
        found = [(match, path) for path in self.folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        return [path for _, path in sorted(found, key=lambda pair: (int(pair[0][2]), int(pair[0][1])))]

    def keep(self, last: int, others: Iterable[Path] = ()) -> None:
        """Remove all but the `last` checkpoints, what `latest` names, and `others`."""
        kept = {*self.saved()[-last:], *others, resolve(self.folder)}
        for path in self.saved():
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)


def resolve(path: Path) -> Path:
    """Return the checkpoint that a path means: itself, or the latest in the folder of a saver, or of a run with one.

    Raises:
        CheckpointError: if there is none.
    """
    if not path.is_dir():
        raise CheckpointError(f"there is no checkpoint at {str(path)!r}: give the folder of one, or that of a saver")
    if (path / RUN_CHECKPOINTS / LATEST).exists():
        path /= RUN_CHECKPOINTS
    elif (path / MANIFEST).exists() or not (path / LATEST).exists():
        return path
    name = (path / LATEST).read_bytes()[:64].decode("ascii", "replace").strip()
    if not _NAME.fullmatch(name):
        raise CheckpointError(f"{str(path / LATEST)!r} holds {name!r}, which names no checkpoint: give one itself")
    named, replaced = path / name, path / f".{name}.old"
    if not named.exists() and replaced.exists():  # the process ended between two renames
        return replaced
    return named


def _lock_file(file: IO[str]) -> None:
    """Raise an OSError if another process holds the file; the system lets go of it when this one ends."""
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415  there is no other home for it

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl  # noqa: PLC0415

        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
