"""A checkpoint, verified when it is read: whole or in parts, by as many processes as there are. Runs no stored code.

Tensors are in safetensors files, one of each kind for each process that wrote them, all else in JSON. Torch's
`HuggingFaceStorageReader` reads them too: each file says in its header where in the tensors its slices begin.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from .. import files
from ..errors import CheckpointError
from .tensor_file import Shape, StoredTensor, TensorFile, join
from .tree import restore

SCHEMA = 3
"""The schema that is written. In schema 1 one process wrote the files; in 2 several did. In both the manifest said
which tensors of an algorithm's state were the average."""
MANIFEST, STATE = "manifest.json", "state.json"
WEIGHTS, STATES, AVERAGES = "model", "state", "average/model"
"""The kinds of files of tensors. Torch's reader takes all files of a folder: averages have the names of weights, so
they are apart, and the names of a state's tensors begin so that no weight has them."""
MODEL = f"{WEIGHTS}.safetensors"
SHAPES, AVERAGE = "shapes", "average"
"""The entries of the state that have the shapes of all tensors, since headers know slices alone, and the average."""
_DEEPEST = 300
"""A state is at most 64 deep, and a tuple or an unusual key takes several levels of JSON."""
_MOST_SHARDS = 99_999
_MOST_DIMENSIONS = 64

Sets: TypeAlias = dict[str, dict[str, StoredTensor]]


@dataclass(frozen=True)
class Checkpoint:
    """A run at one moment: what a folder holds, or what one process holds of it.

    A tensor is on the CPU, in files as a `StoredTensor`, or, if the process holds a part of it, a `TensorSlice`.

    Args:
        model: weights and buffers by their names in the model's state_dict.
        state: JSON, see `flatten`, and `tensors`, which it names.
        manifest: describes the run, for people and for checks before anything is loaded.
    """

    model: Mapping[str, Any]
    state: Mapping[str, Any]
    tensors: Mapping[str, Any]
    manifest: Mapping[str, Any] = field(default_factory=dict)

    def described(self, **more: Any) -> Checkpoint:
        """Return the same with more in its manifest."""
        return replace(self, manifest={**self.manifest, **more})

    @property
    def average(self) -> dict[str, Any]:
        """The averaged weights that evaluations used, by name; empty if there were none."""
        average = restore(self.state.get(AVERAGE, {}), self.tensors)
        if not isinstance(average, dict) or not all(hasattr(value, "dtype") for value in average.values()):
            raise CheckpointError(f"the checkpoint has {self.state[AVERAGE]!r:.80} for the average of the weights")
        return average


def read_content(folder: Path) -> Checkpoint:
    """Return what a checkpoint holds, with tensors on the CPU, after verifying that it is what was written.

    Raises:
        CheckpointError: if the folder is not a checkpoint, or is damaged, with the file.
    """
    opened = open_content(folder)
    model, tensors = ({name: it.read() for name, it in stored.items()} for stored in (opened.model, opened.tensors))
    return replace(opened, model=model, tensors=tensors)


def open_content(folder: Path, *, in_part: bool = False) -> Checkpoint:
    """Return what a checkpoint holds, without reading its tensors, after verifying that it is what was written.

    Args:
        in_part: verify a file of tensors when the first of them is read, for a process that won't read all files.
            The others are checked by their sizes and headers alone.

    Raises:
        CheckpointError: if the folder is not a checkpoint, or is damaged, with the file.
    """
    manifest = read_manifest(folder)
    listed = manifest.pop("files", None)
    try:  # before the other files are parsed, so that parsers meet only what was written
        _check_files(folder, listed, _files_of(manifest))
        for name in (STATE,) if in_part else listed:
            _check_digest(folder / name, listed[name])
    except OSError as error:
        raise CheckpointError(f"{str(folder)!r} can't be read: {error}") from error
    state = read_json(folder / STATE)
    if not isinstance(state, dict):
        raise CheckpointError(f"{str(folder / STATE)!r} is not the state of a run")
    shapes = state.pop(SHAPES, None) if manifest["schema"] > 1 else None
    verify = (lambda name: _check_digest(folder / name, listed[name])) if in_part else None
    sets = open_sets(folder, manifest, shapes, verify)
    tensors = {name.removeprefix(f"{STATES}/"): stored for name, stored in sets[STATES].items()}
    averaged = sets.get(AVERAGES, {})
    names = {name: f"{AVERAGE}.{name}" for name in averaged}
    if not isinstance(manifest.get(AVERAGE, {}), dict):
        raise CheckpointError(f"{str(folder / MANIFEST)!r} has {manifest[AVERAGE]!r:.80} for its average")
    if manifest["schema"] < SCHEMA and AVERAGE in manifest:
        names = _former_average(manifest)
        state[AVERAGE] = {name: {"$": "tensor", "name": key} for name, key in names.items()}
        if differing := sorted(names.keys() ^ averaged.keys() if AVERAGES in sets else ()):
            place = str(folder / MANIFEST)
            raise CheckpointError(f"{place!r} and the files of the average differ in {differing[0]!r:.200}")
    tensors |= {names[name]: stored for name, stored in averaged.items()}
    return Checkpoint(sets[WEIGHTS], state, tensors, manifest)


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
    if not 1 <= manifest["schema"] <= SCHEMA:
        raise CheckpointError(
            f"{str(folder)!r} has schema {manifest['schema']!r:.80}, and this version of engine-core reads schemas 1 "
            f"to {SCHEMA}: install the version that wrote it, or a newer one"
        )
    checksum = manifest.pop("checksum")
    if checksum != checksum_of(manifest):
        raise CheckpointError(f"{str(folder / MANIFEST)!r} is damaged: its checksum differs")
    return manifest


def checksum_of(manifest: Mapping[str, Any]) -> str:
    """Return the checksum that a manifest has to have."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode("ascii")).hexdigest()


def attempt_of(manifest: Mapping[str, Any]) -> int:
    """Return how often the saved run had been resumed, 0 if its version did not count; raise unless it is a count."""
    attempt = manifest.get("attempt", 0)
    if type(attempt) is not int or not 0 <= attempt < 2**63:
        raise CheckpointError(f"the checkpoint's manifest has an invalid attempt: {attempt!r:.80}")
    return attempt


def clock_of(manifest: Mapping[str, Any]) -> dict[str, int]:
    """Return how many epochs and batches were complete when a checkpoint was saved; raise if it does not say."""
    clock = manifest.get("clock")
    if not isinstance(clock, dict) or not all(type(clock.get(unit)) is int for unit in ("epoch", "batch")):
        raise CheckpointError(f"the checkpoint's manifest has an invalid clock: {clock!r:.80}")
    return clock


def read_json(path: Path) -> Any:
    """Return what a file of JSON holds; a CheckpointError if it is not such."""
    return files.read_json(path, follow=False, deepest=_DEEPEST, raises=CheckpointError)


def _files_of(manifest: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the files of each kind of tensors."""
    size = manifest.get("shards") if manifest["schema"] > 1 else 1
    if type(size) is not int or not 1 <= size <= _MOST_SHARDS:
        raise CheckpointError(f"the checkpoint's manifest has an invalid number of shards: {size!r:.80}")
    kinds = [WEIGHTS, STATES]
    if manifest["schema"] > 1 and manifest.get(AVERAGE) is not None:
        kinds.append(AVERAGES)
    return {kind: [name_of(kind, rank, size) for rank in range(size)] for kind in kinds}


def name_of(kind: str, rank: int, size: int) -> str:
    """Return the name of the file in which one of several processes has its tensors of a kind."""
    return f"{kind}.safetensors" if size == 1 else f"{kind}-{rank + 1:05}-of-{size:05}.safetensors"


def _check_files(folder: Path, listed: Any, named: Mapping[str, list[str]]) -> None:
    """Raise unless the folder holds exactly the files of its manifest, each of the size that it says."""
    names = sorted([STATE, *itertools.chain.from_iterable(named.values())])
    if not isinstance(listed, dict) or sorted(listed) != names:
        expected = f"{', '.join(names):.200}"
        raise CheckpointError(f"{str(folder / MANIFEST)!r} does not list the files of a checkpoint, {expected}")
    there = set(_names_in(folder))
    if extra := sorted(there - {MANIFEST, *names}):
        raise CheckpointError(f"{str(folder)!r} holds {extra[0]!r}, which its manifest does not name")
    for name, file in ((name, folder / name) for name in names):
        if name not in there:
            raise CheckpointError(f"{str(file)!r} is missing")
        if why := files.why_not(file, sys.maxsize):  # what a link leads to may change after it was verified
            raise CheckpointError(f"{str(file)!r} can't be read: {why}")
        if not isinstance(listed[name], dict) or file.lstat().st_size != listed[name].get("bytes"):
            raise CheckpointError(f"{str(file)!r} is not what was written: its size differs")


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


def open_sets(
    folder: Path, manifest: Mapping[str, Any], shapes: Any, verify: Callable[[str], None] | None = None
) -> Sets:
    """Return the tensors of each kind, after checking by the headers of all files that each is there and whole.

    Args:
        shapes: those of all tensors, by kind and name; schema 1 has none.
        verify: is called with the name of a file before the first tensor in it is read.
    """
    sets: Sets = {}
    for kind, names in _files_of(manifest).items():
        opened = [TensorFile(folder / file, verify and functools.partial(verify, file)) for file in names]
        if manifest["schema"] > 1:
            sets[kind] = join(opened, _shapes_in(shapes, kind, folder))
        else:
            sets[kind] = {name: stored for file in opened for name, stored in file.whole().items()}
    return sets


def _shapes_in(shapes: Any, kind: str, folder: Path) -> dict[str, Shape]:
    def is_shape(value: Any) -> bool:
        is_list = isinstance(value, list) and len(value) <= _MOST_DIMENSIONS
        return is_list and all(type(length) is int and 0 <= length < 2**63 for length in value)

    own = shapes.get(kind) if isinstance(shapes, dict) else None
    if not isinstance(own, dict) or not all(map(is_shape, own.values())):
        raise CheckpointError(f"{str(folder / STATE)!r} does not say what shapes the tensors of {kind!r} have")
    return {key: tuple(shape) for key, shape in own.items()}


def _former_average(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return, for each averaged weight, which tensor of the state it is, as manifests of the schemas 1 and 2 say."""
    names = manifest[AVERAGE].get("tensors")
    if not isinstance(names, dict) or not all(isinstance(key, str) for key in names.values()):
        raise CheckpointError(f"the checkpoint's {MANIFEST} does not say where its average is")
    return names
