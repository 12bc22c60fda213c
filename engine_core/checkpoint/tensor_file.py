"""Tensors in safetensors files: written one by one, in slices over several files, and read in parts. Knows no run."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import torch
from safetensors import SafetensorError, safe_open

from ..errors import ArgumentError, CheckpointError
from ..messages import readable
from ..ranks import share

Tensors: TypeAlias = dict[str, torch.Tensor]
Shape: TypeAlias = tuple[int, ...]
Box: TypeAlias = tuple[Shape, Shape]
"""A part of a tensor: where it begins, and its size, in each dimension."""
_T = TypeVar("_T")

_NAMES = (
    "U64 uint64, I64 int64, F64 float64, C64 complex64, F32 float32, U32 uint32, I32 int32, BF16 bfloat16, "
    "F16 float16, U16 uint16, I16 int16, F8_E5M2FNUZ float8_e5m2fnuz, F8_E4M3FNUZ float8_e4m3fnuz, "
    "F8_E8M0 float8_e8m0fnu, F8_E4M3 float8_e4m3fn, F8_E5M2 float8_e5m2, I8 int8, U8 uint8, BOOL bool"
)
"""The format's names of dtypes and torch's, in the order in which safetensors lays tensors out."""
_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, dtype)
    for name, _, dtype in (pair.partition(" ") for pair in _NAMES.split(", "))
    if hasattr(torch, dtype)  # torch has not always had all of them
}
_NAME_OF = {dtype: name for name, dtype in _DTYPES.items()}
_OFFSETS, _BEGIN = "DCP_SHARDING_INFO", "saved_offsets"
"""What torch's sharded files have in their headers, so that `HuggingFaceStorageReader` reads these too."""
_BLOCK = 2**20
"""How many bytes are hashed and then written, while they are in the processor's cache."""


class Readable(Protocol):
    """A tensor that is read when it is needed: one in files, or one that is gathered from other processes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return its shape."""

    @property
    def dtype(self) -> torch.dtype:
        """Return its dtype."""

    def read(self) -> torch.Tensor:
        """Return it as a tensor on the CPU."""


class TensorSlice(NamedTuple):
    """What one process holds of a tensor that is spread over several.

    Args:
        tensor: the local part, which may be empty.
        offset: where it begins in the whole tensor, one number for each dimension.
        shape: that of the whole tensor.
    """

    tensor: torch.Tensor
    offset: Shape
    shape: Shape


def slice_rows(tensor: torch.Tensor, rank: int, size: int) -> torch.Tensor | TensorSlice:
    """Return a rank's slice of a tensor that all ranks have alike: some of its rows, at most one more than another's.

    A tensor without dimensions stays as it is.

    Example:
        >>> slice_rows(torch.arange(5), rank=1, size=2)
        TensorSlice(tensor=tensor([3, 4]), offset=(3,), shape=(5,))
    """
    if not tensor.dim():
        return tensor
    begin, end = share(len(tensor), rank, size)
    return TensorSlice(tensor[begin:end], (begin, *(0,) * (tensor.dim() - 1)), tuple(tensor.shape))


def save(
    path: Path, tensors: Mapping[str, torch.Tensor | Readable], about: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Write tensors to a safetensors file, with `about` in its header, and flush it to disk; raise for unknown dtypes.

    Return its number of bytes and their SHA-256, as a manifest lists them. What is read when it is needed is in memory
    one by one.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAME_OF:
            raise CheckpointError(f"{name!r} is a tensor of dtype {tensor.dtype}, which a file can't hold")
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for block in _blocks(in_file_order(tensors), about):
            digest.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}


def save_slices(path: Path, tensors: Mapping[str, torch.Tensor | TensorSlice], rank: int) -> dict[str, Any]:
    """Write what a process holds of tensors as `save` does, and where in them its slices begin, as torch's files do.

    Tensors that all processes have alike, and those without elements, are in the file of rank 0.
    """
    own = {name: found for name, value in tensors.items() if (found := _own(value, rank)) is not None}
    offsets = {name: {_BEGIN: list(offset)} for name, (_, offset) in own.items()}
    about = {_OFFSETS: json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"}
    return save(path, {name: tensor for name, (tensor, _) in own.items()}, about)


def _own(value: torch.Tensor | TensorSlice, rank: int) -> tuple[torch.Tensor, Shape] | None:
    if isinstance(value, TensorSlice):
        if value.tensor.numel():
            return value.tensor, value.offset
        if 0 not in value.shape:
            return None
        value = value.tensor.new_empty(value.shape)
    return None if rank else (value, (0,) * value.dim())


def in_file_order(tensors: Mapping[str, _T]) -> dict[str, _T]:
    """Return tensors in the order in which a file has them, and in which they are read when it is written."""
    places = {dtype: place for place, dtype in enumerate(_NAME_OF)}
    kinds: Mapping[str, Any] = tensors
    return {name: tensors[name] for name in sorted(tensors, key=lambda name: (places[kinds[name].dtype], name))}


def _blocks(
    tensors: Mapping[str, torch.Tensor | Readable], about: Mapping[str, str] | None
) -> Iterator[bytes | memoryview]:
    """Return what a file consists of."""
    header: dict[str, Any] = {"__metadata__": dict(about)} if about else {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + math.prod(tensor.shape) * tensor.dtype.itemsize
        header[name] = {"dtype": _NAME_OF[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in tensors.values():
        whole = (tensor if isinstance(tensor, torch.Tensor) else tensor.read()).contiguous()
        if size := whole.numel() * whole.element_size():
            data = memoryview((ctypes.c_char * size).from_address(whole.data_ptr()))
            for begin in range(0, size, _BLOCK):
                yield data[begin : begin + _BLOCK]


class TensorFile:
    """A safetensors file whose header was read; `verify` is called before the first tensor is read."""

    def __init__(self, path: Path, verify: Callable[[], None] | None = None) -> None:
        self.path = path
        self._verify = verify
        with _errors_of(path):
            self._opened = cast("Any", safe_open(path, framework="pt"))  # whose methods are not typed
            self.about: dict[str, str] = dict(self._opened.metadata() or {})
            found = {name: self._opened.get_slice(name) for name in self._opened.keys()}  # noqa: SIM118  not a dict
            self.tensors = {name: (_DTYPES[it.get_dtype()], tuple(it.get_shape())) for name, it in found.items()}

    def view(self, name: str) -> torch.Tensor:
        """Return a tensor that is read from the file as it is used: what is kept of it has to be copied."""
        with _errors_of(self.path):
            if self._verify is not None:
                self._verify()
                self._verify = None
            tensor: torch.Tensor = self._opened.get_tensor(name)
            return tensor

    def whole(self) -> dict[str, StoredTensor]:
        """Return its tensors, none of which is a slice."""
        return {
            name: StoredTensor(shape, dtype, {((0,) * len(shape), shape): (self, name)})
            for name, (dtype, shape) in self.tensors.items()
        }

    def boxes(self) -> Iterator[tuple[str, Box]]:
        """Yield where each of its slices belongs, as its header says."""
        try:
            offsets = json.loads(self.about.get(_OFFSETS, ""))
        except (ValueError, RecursionError):
            offsets = None
        if not isinstance(offsets, dict) or offsets.keys() != self.tensors.keys():
            raise CheckpointError(f"the header of {str(self.path)!r} does not say where its slices belong")
        for name, (_, size) in self.tensors.items():
            entry = offsets[name]
            offset = entry.get(_BEGIN) if isinstance(entry, dict) else None
            if not isinstance(offset, list) or not all(type(begin) is int for begin in offset):
                raise CheckpointError(f"the header of {str(self.path)!r} has for {name!r:.200} {entry!r:.80}")
            yield name, (tuple(offset), size)


class StoredTensor:
    """A tensor in files, in one slice or several, of which any part can be read.

    Args:
        slices: the file of each and its name there, by its place in the tensor. Together they are the tensor.
    """

    def __init__(self, shape: Shape, dtype: torch.dtype, slices: Mapping[Box, tuple[TensorFile, str]]) -> None:
        self.shape = shape
        self.dtype = dtype
        self._slices = slices

    def read(self, offset: Shape | None = None, size: Shape | None = None) -> torch.Tensor:
        """Return the tensor on the CPU, or the part of a size from an offset on, reading no other bytes.

        Raises:
            CheckpointError: if a file can't be read, or is damaged.
        """
        asked = ((0,) * len(self.shape) if offset is None else offset, self.shape if size is None else size)
        if not _is_within(asked, self.shape):
            raise ArgumentError(f"{_text_of(asked)} is not within a tensor of shape {list(self.shape)}")
        tensor = torch.empty(asked[1], dtype=self.dtype)
        for box, (file, name) in self._slices.items():
            if (shared := _shared(asked, box)) is not None:
                tensor[_seen_from(asked, shared)].copy_(file.view(name)[_seen_from(box, shared)])
        return tensor


def join(files: Sequence[TensorFile], shapes: Mapping[str, Shape]) -> dict[str, StoredTensor]:
    """Return the tensors of which files have slices, after checking that each is there and whole."""
    slices: dict[str, list[tuple[Box, TensorFile]]] = {name: [] for name in shapes}
    for file in files:
        for name, box in file.boxes():
            if name not in shapes:
                raise CheckpointError(f"{str(file.path)!r} has {name!r:.200}, whose shape is not said anywhere")
            slices[name].append((box, file))
    stored = {}
    for name, found in slices.items():
        _check_whole(name, shapes[name], [box for box, _ in found])
        dtypes = {str(file.tensors[name][0]): file.tensors[name][0] for _, file in found}
        if len(dtypes) > 1:
            raise CheckpointError(f"the tensor {name!r:.200} has slices of dtypes {', '.join(sorted(dtypes))}")
        (dtype,) = dtypes.values()
        stored[name] = StoredTensor(shapes[name], dtype, {box: (file, name) for box, file in found})
    return stored


def load(path: Path) -> Tensors:
    """Return the tensors of a safetensors file, on the CPU."""
    file = TensorFile(path)
    # Copies: what is read from a mapped file changes with it, or kills the process when it is cut short.
    return {name: file.view(name).clone() for name in file.tensors}


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError) as error:
        raise CheckpointError(f"{str(path)!r} is not a safetensors file: {readable(str(error))}") from error


def _check_whole(name: str, shape: Shape, boxes: Sequence[Box]) -> None:
    """Raise unless the boxes make up a tensor of this shape, with each element once."""
    whole = f"the tensor {name!r:.200} of shape {list(shape)!r:.80}"
    for box in boxes:
        if not _is_within(box, shape):
            raise CheckpointError(f"{whole} has a slice outside of it: {_text_of(box)}")
    if (pair := _overlapping(boxes)) is not None:
        raise CheckpointError(f"{whole} has slices that overlap: {_text_of(pair[0])} and {_text_of(pair[1])}")
    there, needed = sum(math.prod(size) for _, size in boxes), math.prod(shape)
    if not boxes or there != needed:
        raise CheckpointError(f"{whole} is not whole: its {len(boxes)} slices hold {there} of {needed!r:.40} elements")


def _overlapping(boxes: Sequence[Box]) -> tuple[Box, Box] | None:
    """Return two that share an element; in a tensor without dimensions any two do.

    In order along the dimension cut most often, each is compared with those that begin before its end, one or none.
    """
    dimensions = range(len(boxes[0][0])) if boxes else range(0)
    cut = max(dimensions, key=lambda i: len({offset[i] for offset, _ in boxes}), default=None)
    if cut is None:
        return None
    in_order = sorted(boxes, key=lambda box: box[0][cut])
    for place, one in enumerate(in_order, 1):
        end = one[0][cut] + one[1][cut]
        for other in itertools.takewhile(lambda box: box[0][cut] < end, in_order[place:]):  # noqa: B023
            if _shared(one, other) is not None:
                return one, other
    return None


def _shared(one: Box, other: Box) -> Box | None:
    """Return what both contain; None: nothing."""
    begin = tuple(map(max, one[0], other[0]))
    size = tuple(min(a + n, b + m) - at for at, a, n, b, m in zip(begin, *one, *other, strict=True))
    return (begin, size) if all(length > 0 for length in size) else None


def _seen_from(box: Box, part: Box) -> tuple[slice, ...]:
    """Return the place of a part in the tensor that is in a box."""
    return tuple(slice(a - o, a - o + n) for a, o, n in zip(part[0], box[0], part[1], strict=True))


def _is_within(box: Box, shape: Shape) -> bool:
    return len(box[0]) == len(box[1]) == len(shape) and all(
        min(at, n) >= 0 and at + n <= whole for at, n, whole in zip(*box, shape, strict=True)
    )


def _text_of(box: Box) -> str:
    return f"{list(box[1])} at {list(box[0])}"[:160]
