"""Files of unknown origin read with care, and files written whole or not at all. Knows no run."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .errors import ArgumentError, EngineError, UnwritableError

MOST_BYTES_OF_JSON = 2**26
DEEPEST = 100
"""How deeply a file may be nested: far more than any config, and still safe for Python to walk."""
_FULL = {errno.ENOSPC, errno.EFBIG, errno.EIO, getattr(errno, "EDQUOT", errno.ENOSPC)}


def why_not(file: Path, most_bytes: int, *, follow: bool = False) -> str | None:
    """Return why a file is not read, the empty string if it is not there, or None if it can be read.

    Args:
        follow: read a link too, if it leads to what can be read.
    """
    try:
        status = file.stat() if follow else file.lstat()
    except (OSError, ValueError):  # the latter for a name that no file can have
        return ""
    if stat.S_ISLNK(status.st_mode):
        return f"{file.name} is a link, which is not followed"
    if not stat.S_ISREG(status.st_mode):
        return f"{file.name} is not a file"
    if status.st_size > most_bytes:
        size = max(1, most_bytes // 2**20)
        return f"{file.name} is larger than {size:,} MiB and is not read"
    return None


def read_json(
    file: Path, *, follow: bool = True, deepest: int = DEEPEST, raises: type[EngineError] = ArgumentError
) -> Any:
    """Return the content of a JSON file; raise `raises` if it can't be read, is too large, or is damaged."""
    if problem := why_not(file, MOST_BYTES_OF_JSON, follow=follow):
        raise raises(f"{str(file)!r} can't be read: {problem}")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise raises(f"{str(file)!r} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise raises(f"{str(file)!r} is damaged, it is not JSON: {error}") from None
    except RecursionError:
        raise raises(f"{str(file)!r} is damaged: it is nested too deeply") from None
    level = [content]
    for _ in range(deepest):
        level = [x for v in level if isinstance(v, (dict, list)) for x in (v.values() if isinstance(v, dict) else v)]
        if not level:
            return content
    raise raises(f"{str(file)!r} is damaged: it is nested deeper than {deepest}")


def finite(value: Any) -> Any:
    """Return a value with None for numbers that are not finite, which JSON lacks, also inside lists and mappings."""
    if isinstance(value, Mapping):
        return {str(name): finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def replacing(file: Path, by: str = "") -> Iterator[Path]:
    """Yield the path of a new file, which takes the place of `file` when the block ends; else `file` is as before.

    Args:
        by: tells apart those who may do so at the same time.
    """
    beside = file.with_name(f".{file.name}{by}.new")
    try:
        yield beside
        sync(beside)  # before the rename, or a crash may leave an empty file
        beside.replace(file)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def write_whole(file: Path, content: str | bytes, by: str = "") -> None:
    """Write a file that is whole, or as it was before; see `replacing`."""
    with replacing(file, by) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


def write_new(file: Path, content: str) -> None:
    """Write a whole file, or raise FileExistsError; only one of several concurrent writers succeeds."""
    beside = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        beside.write_text(content, encoding="utf-8")
        sync(beside)
        try:
            os.link(beside, file)
        except FileExistsError:
            raise
        except OSError as error:  # a file system without links
            if os.path.lexists(file):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(file)) from error
            beside.replace(file)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk, where the system supports it."""
    is_folder = path.is_dir()
    if is_folder and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(error: OSError, message: str) -> ArgumentError:
    """Return the error for what can't be written: on a full disk it is no mistake in what was asked for."""
    return (UnwritableError if error.errno in _FULL else ArgumentError)(message)
