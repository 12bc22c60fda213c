"""A checkpoint's folder: what it holds, written atomically, and its JSON. Knows files, not runs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..errors import CheckpointError
from ..files import sync
from ..time import Timestamp
from .pieces import Piece
from .tensor_file import Written, save

if TYPE_CHECKING:
    from typing_extensions import Self

WHOLE, SHARDED = 1, 2
"""The schemas: a file for the model and one for the rest, or one of each for each process."""
MANIFEST = "manifest.json"
MODEL = "model.safetensors"
STATE = "state.json"
TENSORS = "state.safetensors"
_JSON_BYTES = 16 * 2**20
"""How large a JSON file may be: large data belongs in tensors, and a hostile file must not fill the memory."""


@dataclass(frozen=True)
class Share:
    """What one process holds of a checkpoint: its pieces of tensors, and tensors that all processes have alike.

    Args:
        model: weights and buffers by their names in the model's state_dict.
        state: JSON, see `tree.flatten`, and `tensors`, which it names.
        manifest: describes the run, for people and for checks before anything is loaded.
    """

    model: Mapping[str, torch.Tensor | Piece]
    state: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor | Piece]
    manifest: Mapping[str, Any] = field(default_factory=dict)

    def described(self, **more: Any) -> Self:
        """Return the same with more in its manifest."""
        return replace(self, manifest={**self.manifest, **more})


@dataclass(frozen=True)
class Content(Share):
    """What a checkpoint holds.

    Args:
        model: weights and buffers by their names in the model's state_dict.
        state: JSON, see `tree.flatten`, and `tensors`, which it names.
        manifest: describes the run, for people and for checks before anything is loaded.
    """

    model: Mapping[str, torch.Tensor]
    tensors: Mapping[str, torch.Tensor]


class Snapshot(NamedTuple):
    """A copy of a run at one moment, on the CPU: further training does not change it."""

    at: Timestamp
    content: Share


def write_content(folder: Path, content: Content) -> None:
    """Write a checkpoint: afterwards `folder` is complete, or as it was before.

    Raises:
        CheckpointError: if it can't be written, or could not be read again; the partial write is removed.
    """
    begun = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    with taking_place(begun, folder):
        shutil.rmtree(begun, ignore_errors=True)
        begun.mkdir(parents=True)
        files = {MODEL: save(begun / MODEL, content.model), TENSORS: save(begun / TENSORS, content.tensors)}
        complete(begun, content.state, {**content.manifest, "schema": WHOLE}, files)


@contextmanager
def taking_place(begun: Path, folder: Path) -> Iterator[None]:
    """Let `begun` become `folder` when the block ends; after an error `folder` is as before, and `begun` is removed.

    Raises:
        CheckpointError: for an OSError too, with the folder.
    """
    replaced = folder.with_name(f".{folder.name}.old")
    try:
        yield
        sync(begun)  # before the rename, or a crash may leave the new name with half of the files
        if folder.exists():  # else `replaced` is the only copy
            shutil.rmtree(replaced, ignore_errors=True)
            folder.rename(replaced)
        begun.rename(folder)
        sync(folder.parent)
    except BaseException as error:
        shutil.rmtree(begun, ignore_errors=True)
        if replaced.exists() and not folder.exists():
            replaced.rename(folder)
        if isinstance(error, (OSError, CheckpointError)):
            raise CheckpointError(f"{str(folder)!r} can't be written: {error}") from error
        raise
    shutil.rmtree(replaced, ignore_errors=True)  # only now is the new one on the disk


def complete(begun: Path, state: Mapping[str, Any], manifest: Mapping[str, Any], files: Mapping[str, Written]) -> None:
    """Write the state, and then the manifest, which lists all files."""
    listed = {**files, STATE: write_json(begun / STATE, state)}
    described = {**manifest, "files": {name: listed[name].as_json() for name in sorted(listed)}}
    write_json(begun / MANIFEST, {**described, "checksum": _checksum(described)})


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint without looking at the other files.

    Raises:
        CheckpointError: if the folder is not a checkpoint, or is of a newer version.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise CheckpointError(f"{str(folder)!r} {what}: a checkpoint is a folder with {MANIFEST}")
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or type(manifest.get("schema")) is not int or "checksum" not in manifest:
        raise CheckpointError(f"{str(folder / MANIFEST)!r} is not a checkpoint's manifest: it lacks schema or checksum")
    if manifest["schema"] not in (WHOLE, SHARDED):
        raise CheckpointError(
            f"{str(folder)!r} has schema {manifest['schema']!r:.80}, and this version of engine-core reads schemas "
            f"{WHOLE} and {SHARDED}: install the version that wrote it, or a newer one"
        )
    checksum = manifest.pop("checksum")
    if checksum != _checksum(manifest):
        raise CheckpointError(f"{str(folder / MANIFEST)!r} is damaged: its checksum differs")
    return manifest


def attempt_of(manifest: Mapping[str, Any]) -> int:
    """Return how often the saved run had been resumed; a version that did not count wrote nothing, which is 0.

    Raises:
        CheckpointError: if it is not a count.
    """
    attempt = manifest.get("attempt", 0)
    if type(attempt) is not int or not 0 <= attempt < 2**63:
        raise CheckpointError(f"the checkpoint's manifest has an invalid attempt: {attempt!r:.80}")
    return attempt


def write_json(path: Path, value: Any) -> Written:
    """Write a file of JSON, and flush it to disk.

    Raises:
        CheckpointError: if it would be too large to be read.
    """
    text = json.dumps(value, indent=1, allow_nan=False)
    if len(text) > _JSON_BYTES:
        raise CheckpointError(
            f"{path.name} would take {len(text)} bytes, and at most {_JSON_BYTES} can be read: let state_dict() return "
            "tensors where there are many numbers"
        )
    data = text.encode("ascii")
    path.write_bytes(data)
    sync(path)
    return Written(len(data), hashlib.sha256(data).hexdigest())


def _checksum(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode("ascii")).hexdigest()


def read_json(path: Path) -> Any:
    """Return what a file of JSON holds.

    Raises:
        CheckpointError: if it is missing, too large, or anything but JSON with each key once.
    """
    try:
        if (size := size_of(path)) > _JSON_BYTES:
            raise CheckpointError(f"{str(path)!r} takes {size} bytes, and at most {_JSON_BYTES} are read")
        return parse_json(path.read_bytes().decode("ascii"))
    except FileNotFoundError:
        raise CheckpointError(f"{str(path)!r} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{str(path)!r} can't be read: {error.strerror}") from error
    except RecursionError:
        raise CheckpointError(f"{str(path)!r} is nested too deeply") from None
    except ValueError as error:  # json's and the decoder's own errors are such
        raise CheckpointError(f"{str(path)!r} is not a checkpoint's JSON: {error}") from None


def parse_json(text: str) -> Any:
    """Return what JSON holds; a ValueError or RecursionError if it is not such, or has a key twice."""
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)


def size_of(path: Path) -> int:
    """Return the bytes of a file.

    Raises:
        CheckpointError: if it is a link, or not a file.
    """
    found = path.lstat()  # not stat: what a link leads to may change after it was verified
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"{str(path)!r} is a link or not a file")
    return found.st_size


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("an object has a key twice")
    return values


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
