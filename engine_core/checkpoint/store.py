"""A folder of checkpoints: their names, the latest one, how many to keep, and which run owns the folder."""

from __future__ import annotations

import functools
import os
import re
import secrets
import shutil
import sys
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar

from ..errors import CheckpointError
from ..files import sync, write_whole
from ..ranks import Ranks
from ..time import Timestamp
from .reading import MANIFEST, Checkpoint, attempt_of, read_manifest
from .writing import write_content

LATEST, BEST = "latest", "best"
RUN_CHECKPOINTS = "checkpoints"
"""The subfolder in which a command-line run saves."""

_LOCK = ".lock"
_IDENTITY = ".id"
_T = TypeVar("_T")
_NAME = re.compile(r"ep(\d+)-ba(\d+)")
_REPLACED = re.compile(rf"\.{_NAME.pattern}\.old")


class Store:
    """A saver's folder: `ep<E>-ba<B>/` for each checkpoint, and the text files `latest` and `best` that name one each.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> store = Store(folder)
        >>> _ = store.save(Timestamp(epoch=1, batch=8), Checkpoint(model={}, state={}, tensors={}))
        >>> resolve(folder).name, [path.name for path in store.saved()]
        ('ep1-ba8', ['ep1-ba8'])
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.identity = ""
        """The folder's id, known once it is locked and kept when it is moved."""
        self._lock: IO[str] | None = None

    def lock(self) -> bool:
        """Take the folder for this process, until `unlock` or its end; return whether it already had it.

        Raises:
            CheckpointError: if another live run has it.
            OSError: if nothing can be written there.
        """
        if self._lock is not None:
            return True
        self.folder.mkdir(parents=True, exist_ok=True)
        file = (self.folder / _LOCK).open("a+", encoding="ascii", errors="replace")
        try:
            self._claim(file)
        except BaseException:
            file.close()
            raise
        self._lock = file
        _locked.add(self)
        _let_go_in_children()
        self._tidy()  # only with the lock: what looks left over may be another run's work
        self.identity = self._read_identity()
        return False

    def unlock(self) -> None:
        """Release the folder."""
        file, self._lock = self._lock, None
        _locked.discard(self)
        if file is not None:
            file.close()

    @staticmethod
    def name_of(at: Timestamp) -> str:
        """Return the name of the checkpoint of a position."""
        return f"ep{at.epoch}-ba{at.batch}"

    def save(self, at: Timestamp, content: Checkpoint, ranks: Ranks | None = None, begun: str = "") -> Path:
        """Write a checkpoint, or this process's part of it, see `write_content`, then record it as the latest.

        Return its folder.
        """
        path = self.folder / self.name_of(at)
        write_content(path, content, ranks, begun)
        if ranks is None or not ranks.rank:
            self._point(LATEST, path.name)
        return path

    def begin(self, at: Timestamp) -> str:
        """Make the folder that several processes will fill with a checkpoint; return its name.

        It is for rank 0, which holds the lock, while it writes nothing: what earlier saves left unfinished is removed.

        Raises:
            OSError: if nothing can be written there.
        """
        self._remove_begun()
        begun = self.folder / f".{self.name_of(at)}.{secrets.token_hex(8)}.new"
        begun.mkdir(parents=True)
        return begun.name

    def mark_best(self, name: str | None) -> None:
        """Let `best` name a checkpoint; None: there is no best one."""
        if name is None:
            (self.folder / BEST).unlink(missing_ok=True)
        else:
            self._point(BEST, name)

    def _point(self, pointer: str, name: str) -> None:
        write_whole(self.folder / pointer, f"{name}\n")
        sync(self.folder)

    def saved(self) -> list[Path]:
        """Return the checkpoints in the folder by batch, attempt and epoch."""
        return sorted(_named(self.folder, _NAME), key=_when)

    def holds(self) -> str | None:
        """Return the last of what stands where checkpoints and the files that name them are written; None: nothing."""
        pointers = [name for name in (BEST, LATEST) if os.path.lexists(self.folder / name)]
        return next(iter([*(path.name for path in reversed(self.saved())), *pointers]), None)

    def keep(self, these: Iterable[Path]) -> None:
        """Remove all but these, and what `latest` names."""
        kept = {*these, resolve(self.folder)}
        for path in self.saved():
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)

    def _claim(self, file: IO[str]) -> None:
        try:
            _lock_file(file)
        except (BlockingIOError, PermissionError):  # Windows says the latter
            file.seek(0)
            owner = file.read(64).strip() or "unknown"
            raise CheckpointError(
                f"{str(self.folder)!r} is in use by another run (process {owner}): let that one end, or save elsewhere"
            ) from None
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()

    def _read_identity(self) -> str:
        """Return the folder's id; create it if it is missing, or empty because a process was killed."""
        file = self.folder / _IDENTITY
        identity = ""
        if file.is_file():
            with file.open(encoding="ascii", errors="replace") as opened:
                identity = opened.read(64)
        if not identity:
            identity = secrets.token_hex(8)
            write_whole(file, identity)
        return identity

    def _tidy(self) -> None:
        """Remove what a killed process left half-written, and restore what it was about to replace."""
        self._remove_begun()
        for pointer in (LATEST, BEST):
            with suppress(OSError):
                (self.folder / f".{pointer}.new").unlink(missing_ok=True)
        for replaced in _named(self.folder, _REPLACED):
            path = _replacing(replaced)
            if path.exists():
                shutil.rmtree(replaced, ignore_errors=True)
            else:
                with suppress(OSError):  # it is read from where it is
                    replaced.rename(path)

    def _remove_begun(self) -> None:
        for begun in self.folder.glob(".ep*.new"):
            shutil.rmtree(begun, ignore_errors=True)


def has_checkpoint(folder: Path) -> bool:
    """Does a saver's folder hold a checkpoint to resume, even a damaged one?"""
    return os.path.lexists(folder / LATEST) or bool(_named(folder, _NAME) or _named(folder, _REPLACED))


def resolve(path: Path) -> Path:
    """Return the checkpoint that a path means: itself, or the latest in the folder of a saver, or of a run with one.

    A saver's files `latest` and `best` mean the checkpoint that they name.

    If a process ended before it could name the latest, that is the last one saved that can be read.

    Raises:
        CheckpointError: if there is none.
    """
    if path.name in (LATEST, BEST) and path.is_file():
        return path.parent / _read_name(path)
    if not path.is_dir():
        raise CheckpointError(f"there is no checkpoint at {str(path)!r}: give the folder of one, or that of a saver")
    if has_checkpoint(path / RUN_CHECKPOINTS):
        path /= RUN_CHECKPOINTS
    elif (path / MANIFEST).exists() or not has_checkpoint(path):
        return path
    if not os.path.lexists(path / LATEST):
        # Those too that a process was about to replace when it ended.
        replaced = [each for each in _named(path, _REPLACED) if not _replacing(each).exists()]
        there = sorted([*_named(path, _NAME), *replaced], key=_when)
        for checkpoint in reversed(there):
            with suppress(CheckpointError):
                read_manifest(checkpoint)
                return checkpoint
        return there[-1]
    name = _read_name(path / LATEST)
    named, former = path / name, path / f".{name}.old"
    return former if not named.exists() and former.exists() else named  # the process ended between two renames


def read_resolved(path: Path, read: Callable[[Path], _T]) -> tuple[Path, _T]:
    """Return the checkpoint that a path means, and what `read` makes of it.

    If a run removes it meanwhile, the new latest one is read.
    """
    checkpoint = resolve(path)
    while True:
        try:
            return checkpoint, read(checkpoint)
        except CheckpointError:
            before, checkpoint = checkpoint, resolve(path)
            if checkpoint == before:
                raise


def _read_name(file: Path) -> str:
    if not file.is_file():
        raise CheckpointError(f"{str(file)!r} is not a file: remove it, or give the path of a checkpoint")
    try:
        with file.open("rb") as opened:
            name = opened.read(64).decode("ascii", "replace").strip()
    except OSError as error:
        raise CheckpointError(f"{str(file)!r} can't be read: {error.strerror}") from error
    if not _NAME.fullmatch(name):
        raise CheckpointError(f"{str(file)!r} holds {name!r}, which is not a checkpoint's name; give the path of one")
    return name


def _named(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    return [path for path in folder.iterdir() if pattern.fullmatch(path.name)] if folder.is_dir() else []


def _replacing(replaced: Path) -> Path:
    return replaced.with_name(replaced.name[1 : -len(".old")])


def _when(path: Path) -> tuple[int, int, int]:
    """Return batch, attempt and epoch of a checkpoint, and not the file's time, since a clock may be set back."""
    attempt = 0
    with suppress(OSError, CheckpointError):  # a damaged one has its place too
        attempt = attempt_of(read_manifest(path))
    epoch, batch = map(int, _NAME.findall(path.name)[0])
    return batch, attempt, epoch


_locked: weakref.WeakSet[Store] = weakref.WeakSet()


@functools.cache
def _let_go_in_children() -> None:
    """Keep forked processes, such as a loader's workers, from holding a folder longer than the run that locked it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_let_go)


def _let_go() -> None:
    for store in list(_locked):
        store.unlock()  # closes the child's descriptor; the parent's keeps the lock


def _lock_file(file: IO[str]) -> None:
    """Raise an OSError if another process holds the file; the system lets go of it when this one ends."""
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415  there is no other home for it

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl  # noqa: PLC0415

        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
