"""A checkpoint that is read: verified first, whole or in parts, by as many processes as there are."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError
from .files import MANIFEST, SHARDED, STATE, Content, read_json, read_manifest, size_of
from .shards import AVERAGES, MODELS, SHAPES, STATES, Sets, files_of, open_sets, tensors_of_average
from .tensor_file import Stored


@dataclass(frozen=True)
class Opened:
    """A checkpoint whose tensors are in its files until they are read.

    Args:
        model: weights and buffers by their names in the model's state_dict.
        state: JSON, see `tree.restore`, and `tensors`, which it names.
        manifest: describes the run.
    """

    model: Mapping[str, Stored]
    state: Mapping[str, Any]
    tensors: Mapping[str, Stored]
    manifest: Mapping[str, Any]


class Unread(Mapping[str, torch.Tensor]):
    """Tensors in files, each read when it is looked up."""

    def __init__(self, stored: Mapping[str, Stored]) -> None:
        self._stored = stored

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._stored[name].read()

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


def read_content(folder: Path) -> Content:
    """Return what a checkpoint holds, with tensors on the CPU, after verifying that it is what was written.

    Raises:
        CheckpointError: if the folder is not a checkpoint, or is damaged, with the file.
    """
    opened = open_content(folder)
    model, tensors = ({name: it.read() for name, it in stored.items()} for stored in (opened.model, opened.tensors))
    return Content(model, opened.state, tensors, opened.manifest)


def open_content(folder: Path, *, in_part: bool = False) -> Opened:
    """Return what a checkpoint holds, without reading its tensors, after verifying that it is what was written.

    Args:
        in_part: verify a file of tensors when the first of them is read, for a process that won't read all files.
            The others are checked by their sizes and headers alone.

    Raises:
        CheckpointError: if the folder is not a checkpoint, or is damaged, with the file.
    """
    manifest = read_manifest(folder)
    files = manifest.pop("files", None)
    try:  # before the other files are parsed, so that parsers meet only what was written
        _check_files(folder, files, files_of(manifest))
        for name in (STATE,) if in_part else files:
            _check_digest(folder / name, files[name])
    except OSError as error:
        raise CheckpointError(f"{str(folder)!r} can't be read: {error}") from error
    state = read_json(folder / STATE)
    if not isinstance(state, dict):
        raise CheckpointError(f"{str(folder / STATE)!r} is not the state of a run")

    shapes = state.pop(SHAPES, None) if manifest["schema"] == SHARDED else None
    verify = (lambda name: _check_digest(folder / name, files[name])) if in_part else None
    sets = open_sets(folder, manifest, shapes, verify)
    tensors = sets[STATES] if shapes is None else _state_in(sets, manifest, folder)
    return Opened(sets[MODELS], state, tensors, manifest)


def _state_in(sets: Sets, manifest: Mapping[str, Any], folder: Path) -> dict[str, Stored]:
    """Return the state's tensors under their own names, with the averages, which lie apart under those of weights."""
    average = tensors_of_average(manifest)
    if differing := sorted(average.keys() ^ sets.get(AVERAGES, {}).keys()):
        raise CheckpointError(
            f"{str(folder / MANIFEST)!r} and the files of the average differ in {differing[0]!r:.200}"
        )
    state = {name.removeprefix(f"{STATES}/"): stored for name, stored in sets[STATES].items()}
    return {**state, **{key: sets[AVERAGES][name] for name, key in average.items()}}


def _check_files(folder: Path, files: Any, named: Mapping[str, list[str]]) -> None:
    """Raise unless the folder holds exactly the files of its manifest, each of the size that it says."""
    names = sorted([STATE, *itertools.chain.from_iterable(named.values())])
    if not isinstance(files, dict) or sorted(files) != names:
        listed = f"{', '.join(names):.200}"
        raise CheckpointError(f"{str(folder / MANIFEST)!r} does not list the files of a checkpoint, {listed}")
    there = set(_names_in(folder))
    if extra := sorted(there - {MANIFEST, *names}):
        raise CheckpointError(f"{str(folder)!r} holds {extra[0]!r}, which its manifest does not name")
    for name in names:
        if name not in there:
            raise CheckpointError(f"{str(folder / name)!r} is missing")
        if not isinstance(files[name], dict) or size_of(folder / name) != files[name].get("bytes"):
            raise CheckpointError(f"{str(folder / name)!r} is not what was written: its size differs")


def _names_in(folder: Path) -> Iterator[str]:
    for entry in os.scandir(folder):
        is_folder = entry.is_dir(follow_symlinks=False)
        inner = [f"{entry.name}/{file.name}" for file in os.scandir(entry.path)] if is_folder else []
        yield from inner or [entry.name]


def _check_digest(path: Path, listed: Mapping[str, Any]) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    if digest.hexdigest() != listed.get("sha256"):
        raise CheckpointError(f"{str(path)!r} is not what was written: its checksum differs")
