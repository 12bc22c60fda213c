"""A checkpoint's folder: written atomically, fully verified when read. Knows files, not runs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ..errors import CheckpointError
from ..messages import readable
from ..time import Timestamp

SCHEMA = 1
MANIFEST = "manifest.json"
MODEL = "model.safetensors"
_STATE = "state.json"
TENSORS = "state.safetensors"
_FILES = (MODEL, _STATE, TENSORS)
_JSON_BYTES = 16 * 2**20
"""How large a JSON file may be: large data belongs in tensors, and a hostile file must not fill the memory."""


@dataclass(frozen=True)
class Content:
    """What a checkpoint holds.

    Args:
        model: weights and buffers by their names in the model's state_dict.
        state: JSON, see `tree.flatten`, and `tensors`, which it names.
        manifest: describes the run, for people and for checks before anything is loaded.
    """

    model: Mapping[str, torch.Tensor]
    state: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]
    manifest: Mapping[str, Any] = field(default_factory=dict)

    def described(self, **more: Any) -> Content:
        """Return the same with more in its manifest."""
        return replace(self, manifest={**self.manifest, **more})


class Snapshot(NamedTuple):
    """A copy of a run at one moment, on the CPU: further training does not change it."""

    at: Timestamp
    content: Content


def write_content(folder: Path, content: Content) -> None:
    """Write a checkpoint: afterwards `folder` is complete, or as it was before.

    Raises:
        CheckpointError: if it can't be written, or could not be read again; the partial write is removed.
    """
    try:
        _write_content(folder, content)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{str(folder)!r} can't be written: {error}") from error


def _write_content(folder: Path, content: Content) -> None:
    begun = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    replaced = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(begun, ignore_errors=True)
    begun.mkdir(parents=True)
    try:
        save(begun / MODEL, content.model)
        save(begun / TENSORS, content.tensors)
        _write_json(begun / _STATE, content.state)
        files = {name: {"bytes": (begun / name).stat().st_size, "sha256": _digest(begun / name)} for name in _FILES}
        manifest = {**content.manifest, "schema": SCHEMA, "files": files}
        _write_json(begun / MANIFEST, {**manifest, "checksum": _checksum(manifest)})
        sync(begun)  # before the rename, or a crash may leave the new name with half of the files
        if folder.exists():  # else `replaced` is the only copy
            shutil.rmtree(replaced, ignore_errors=True)
            folder.rename(replaced)
        begun.rename(folder)
        sync(folder.parent)
    except BaseException:
        shutil.rmtree(begun, ignore_errors=True)
        if replaced.exists() and not folder.exists():
            replaced.rename(folder)
        raise
    shutil.rmtree(replaced, ignore_errors=True)  # only now is the new one on the disk


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint without looking at the other files.

    Raises:
        CheckpointError: if the folder is not a checkpoint, or is of a newer version.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise CheckpointError(f"{str(folder)!r} {what}: a checkpoint is a folder with {MANIFEST}")
    manifest = _read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or type(manifest.get("schema")) is not int or "checksum" not in manifest:
        raise CheckpointError(f"{str(folder / MANIFEST)!r} is not a checkpoint's manifest: it lacks schema or checksum")
    if not 1 <= manifest["schema"] <= SCHEMA:
        raise CheckpointError(
            f"{str(folder)!r} has schema {manifest['schema']!r:.80}, and this version of engine-core reads schema "
            f"{SCHEMA}: install the version that wrote it, or a newer one"
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


def read_content(folder: Path) -> Content:
    """Return what a checkpoint holds, with tensors on the CPU, after verifying that it is what was written.

    Raises:
        CheckpointError: if the folder is not a checkpoint, or is damaged, with the file.
    """
    manifest = read_manifest(folder)
    try:  # before the other files are parsed, so that parsers meet only what was written
        _check_files(folder, manifest.pop("files", None))
    except OSError as error:
        raise CheckpointError(f"{str(folder)!r} can't be read: {error}") from error
    state = _read_json(folder / _STATE)
    if not isinstance(state, dict):
        raise CheckpointError(f"{str(folder / _STATE)!r} is not the state of a run")
    return Content(load(folder / MODEL), state, load(folder / TENSORS), manifest)


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


def save(path: Path, tensors: Mapping[str, torch.Tensor], about: Mapping[str, str] | None = None) -> None:
    """Write tensors to a safetensors file, with `about` in its header, and flush it to disk."""
    path.touch()
    mode = path.stat().st_mode
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, dict(about or {}) or None)
    path.chmod(mode)  # safetensors lets the owner alone read it
    sync(path)


def _write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=1, allow_nan=False)
    if len(text) > _JSON_BYTES:
        raise CheckpointError(
            f"{path.name} would take {len(text)} bytes, and at most {_JSON_BYTES} can be read: let state_dict() return "
            "tensors where there are many numbers"
        )
    path.write_text(text, encoding="ascii")
    sync(path)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _checksum(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode("ascii")).hexdigest()


def _check_files(folder: Path, files: Any) -> None:
    """Raise unless the folder holds exactly the files of its manifest, each as it was written."""
    if not isinstance(files, dict) or sorted(files) != sorted(_FILES):
        names = ", ".join(_FILES)
        raise CheckpointError(f"{str(folder / MANIFEST)!r} does not list the files of a checkpoint, {names}")
    there = {entry.name for entry in os.scandir(folder)}
    if extra := sorted(there - {MANIFEST, *_FILES}):
        raise CheckpointError(f"{str(folder)!r} holds {extra[0]!r}, which its manifest does not name")
    for name in _FILES:
        path = folder / name
        if name not in there:
            raise CheckpointError(f"{str(path)!r} is missing")
        listed = files[name] if isinstance(files[name], dict) else {}
        if _size_of(path) != listed.get("bytes") or _digest(path) != listed.get("sha256"):
            raise CheckpointError(f"{str(path)!r} is not what was written: its checksum differs")


def load(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file, on the CPU.

    Raises:
        CheckpointError: if it can't be read.
    """
    try:
        # Copies: what is read from a mapped file changes with it, or kills the process when it is cut short.
        return {name: tensor.clone() for name, tensor in load_file(path).items()}
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError) as error:
        raise CheckpointError(f"{str(path)!r} is not a safetensors file: {readable(str(error))}") from error


def _read_json(path: Path) -> Any:
    try:
        if (size := _size_of(path)) > _JSON_BYTES:
            raise CheckpointError(f"{str(path)!r} takes {size} bytes, and at most {_JSON_BYTES} are read")
        text = path.read_bytes().decode("ascii")
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except FileNotFoundError:
        raise CheckpointError(f"{str(path)!r} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{str(path)!r} can't be read: {error.strerror}") from error
    except RecursionError:
        raise CheckpointError(f"{str(path)!r} is nested too deeply") from None
    except ValueError as error:  # json's and the decoder's own errors are such
        raise CheckpointError(f"{str(path)!r} is not a checkpoint's JSON: {error}") from None


def _size_of(path: Path) -> int:
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
