"""The checkpoints in a run's folder, listed without opening one. Knows no tensors, so it needs no torch."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import why_not
from ..manifest import NAME
from .files import entries_in, read_mapping

FOLDER = "checkpoints"
_NAMED = re.compile(r"ep(\d{1,18})-ba(\d{1,18})")
_POINTER_BYTES = 64


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
    place = folder / FOLDER
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
