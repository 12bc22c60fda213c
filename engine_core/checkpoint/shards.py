"""The files of tensors in a checkpoint: one for each process, in the layout of torch.distributed.checkpoint.

Its `HuggingFaceStorageReader` reads them: each file says in its header where in the tensors its pieces begin.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch

from ..errors import CheckpointError
from .files import MANIFEST, MODEL, SHARDED, STATE, TENSORS, Share, parse_json
from .pieces import Box, Piece, Shape, check_whole
from .tensor_file import Stored, TensorFile, Written, save

MODELS, STATES, AVERAGES = "model", "state", "average/model"
"""The sets of tensors. torch's reader takes all files of a folder: averages have the names of weights, so they are
apart, and the names of a state's tensors begin so that no weight has them."""
SHAPES = "shapes"
"""The entry of the state that has the shapes of all tensors: headers know pieces alone."""
_OFFSETS, _BEGIN = "DCP_SHARDING_INFO", "saved_offsets"
_DCP = {"DCP_VERSION": "1.0", "format": "pt"}
_MOST_SHARDS = 99_999
_MOST_DIMENSIONS = 64

Sets: TypeAlias = dict[str, dict[str, Stored]]


def files_of(manifest: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the files of each set of tensors, by its schema.

    Raises:
        CheckpointError: if the manifest does not say how many there are.
    """
    if manifest["schema"] != SHARDED:
        return {MODELS: [MODEL], STATES: [TENSORS]}
    size = manifest.get("shards")
    if type(size) is not int or not 1 <= size <= _MOST_SHARDS:
        raise CheckpointError(f"the checkpoint's manifest has an invalid number of shards: {size!r:.80}")
    sets = [MODELS, STATES, *([AVERAGES] if manifest.get("average") is not None else [])]
    return {name: [_file_of(name, rank, size) for rank in range(size)] for name in sets}


def _file_of(name: str, rank: int, size: int) -> str:
    return f"{name}-{rank + 1:05}-of-{size:05}.safetensors"


def tensors_of_average(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return, for each weight that has an average, which tensor of the state it is.

    Raises:
        CheckpointError: if the manifest does not say it.
    """
    place = manifest.get("average")
    tensors = {} if place is None else place.get("tensors") if isinstance(place, dict) else None
    if not isinstance(tensors, dict) or not all(isinstance(key, str) for key in tensors.values()):
        raise CheckpointError(f"the checkpoint's {MANIFEST} does not say where its average is")
    return tensors


def write_own(folder: Path, share: Share, rank: int, size: int) -> dict[str, Written]:
    """Write the files of one process; return them by their names in the folder.

    Tensors that are the same everywhere, and those without elements, are in the files of rank 0.
    """
    written = {}
    for name, values in _sets_of(share).items():
        file = _file_of(name, rank, size)
        if (parent := (folder / file).parent) != folder:  # which only rank 0 makes: given up, it is not to come back
            parent.mkdir(exist_ok=True)
        own = {key: value for key, value in ((k, _own(v, rank)) for k, v in values.items()) if value is not None}
        offsets = {key: {_BEGIN: list(offset)} for key, (_, offset) in own.items()}
        about = {_OFFSETS: json.dumps(offsets), **_DCP}
        written[file] = save(folder / file, {key: tensor for key, (tensor, _) in own.items()}, about)
    return written


def _sets_of(share: Share) -> dict[str, dict[str, torch.Tensor | Piece]]:
    average = tensors_of_average(share.manifest)
    state = {f"{STATES}/{key}": value for key, value in share.tensors.items() if key not in set(average.values())}
    sets = {MODELS: dict(share.model), STATES: state}
    if share.manifest.get("average") is not None:
        sets[AVERAGES] = {name: share.tensors[key] for name, key in average.items()}
    return sets


def _own(value: torch.Tensor | Piece, rank: int) -> tuple[torch.Tensor, Shape] | None:
    if isinstance(value, Piece):
        if value.tensor.numel():
            return value.tensor, value.offset
        if 0 not in value.shape:
            return None
        value = value.tensor.new_empty(value.shape)
    return None if rank else (value, (0,) * value.dim())


def shapes_of(share: Share) -> dict[str, dict[str, list[int]]]:
    """Return the shapes of all tensors of each set."""
    return {name: {key: list(value.shape) for key, value in values.items()} for name, values in _sets_of(share).items()}


def open_sets(
    folder: Path, manifest: Mapping[str, Any], shapes: Any, verify: Callable[[str], None] | None = None
) -> Sets:
    """Return the tensors of a checkpoint, after checking by the headers of all files that each is there and whole.

    Args:
        shapes: those of a sharded checkpoint's tensors.
        verify: is called with the name of a file before the first tensor in it is read.

    Raises:
        CheckpointError: if something is missing, overlaps, or is not as promised, with the file or tensor.
    """
    sets: Sets = {}
    for name, files in files_of(manifest).items():
        opened = [TensorFile(folder / file, verify and functools.partial(verify, file)) for file in files]
        if manifest["schema"] == SHARDED:
            sets[name] = _joined(opened, _shapes_in(shapes, name, folder))
        else:
            (file,) = opened
            sets[name] = {
                key: Stored(shape, dtype, {Box((0,) * len(shape), shape): (file, key)})
                for key, (dtype, shape) in file.tensors.items()
            }
    return sets


def _shapes_in(shapes: Any, name: str, folder: Path) -> dict[str, Shape]:
    own = shapes.get(name) if isinstance(shapes, dict) else None
    if not isinstance(own, dict) or not all(_is_shape(shape) for shape in own.values()):
        raise CheckpointError(f"{str(folder / STATE)!r} does not say what shapes the tensors of {name!r} have")
    return {key: tuple(shape) for key, shape in own.items()}


def _is_shape(value: Any) -> bool:
    is_list = isinstance(value, list) and len(value) <= _MOST_DIMENSIONS
    return is_list and all(type(length) is int and 0 <= length < 2**63 for length in value)


def _joined(files: list[TensorFile], shapes: Mapping[str, Shape]) -> dict[str, Stored]:
    pieces: dict[str, list[tuple[Box, TensorFile]]] = {name: [] for name in shapes}
    for file in files:
        for name, box in _boxes_in(file):
            if name not in shapes:
                raise CheckpointError(f"{str(file.path)!r} has {name!r:.200}, whose shape {STATE} does not say")
            pieces[name].append((box, file))
    stored = {}
    for name, parts in pieces.items():
        check_whole(name, shapes[name], [box for box, _ in parts])
        dtypes = {str(file.tensors[name][0]): file.tensors[name][0] for _, file in parts}
        if len(dtypes) > 1:
            raise CheckpointError(f"the tensor {name!r:.200} has pieces of dtypes {', '.join(sorted(dtypes))}")
        (dtype,) = dtypes.values()
        stored[name] = Stored(shapes[name], dtype, {box: (file, name) for box, file in parts})
    return stored


def _boxes_in(file: TensorFile) -> Iterator[tuple[str, Box]]:
    """Return where each piece in a file belongs, as its header says."""
    try:
        offsets = parse_json(file.about.get(_OFFSETS, ""))
    except (ValueError, RecursionError):
        offsets = None
    if not isinstance(offsets, dict) or offsets.keys() != file.tensors.keys():
        raise CheckpointError(f"the header of {str(file.path)!r} does not say where its pieces belong")
    for name, (_, size) in file.tensors.items():
        entry = offsets[name]
        offset = entry.get(_BEGIN) if isinstance(entry, dict) else None
        if not isinstance(offset, list) or not all(type(begin) is int for begin in offset):
            raise CheckpointError(f"the header of {str(file.path)!r} has for {name!r:.200} {entry!r:.80}")
        yield name, Box(tuple(offset), size)
