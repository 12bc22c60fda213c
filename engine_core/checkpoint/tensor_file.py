"""One safetensors file: written tensor by tensor, and read in parts. Knows neither checkpoints nor runs."""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import torch
from safetensors import SafetensorError, safe_open

from ..errors import ArgumentError, CheckpointError
from ..messages import readable
from .pieces import Box, Shape

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
RESERVED = "__metadata__"
"""The entry of the header that is not a tensor."""
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


class Written(NamedTuple):
    """What a file has to be later: its bytes, and their SHA-256."""

    size: int
    sha256: str

    def as_json(self) -> dict[str, Any]:
        """Return the entry of a manifest."""
        return {"bytes": self.size, "sha256": self.sha256}


def save(path: Path, tensors: Mapping[str, torch.Tensor | Readable], about: Mapping[str, str] | None = None) -> Written:
    """Write tensors to a safetensors file, with `about` in its header, and flush it to disk.

    What is read when it is needed is in memory one by one.

    Raises:
        CheckpointError: for a dtype that the format lacks.
    """
    for name, tensor in tensors.items():
        if name == RESERVED:
            raise CheckpointError(f"a tensor can't be called {name!r}: files keep this name for what is about them")
        if tensor.dtype not in _NAME_OF:
            raise CheckpointError(f"{name!r} is a tensor of dtype {tensor.dtype}, which a file can't hold")
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for block in _blocks(in_file_order(tensors), about):
            digest.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return Written(file.tell(), digest.hexdigest())


def in_file_order(tensors: Mapping[str, _T]) -> dict[str, _T]:
    """Return tensors in the order in which a file has them, and in which they are read when it is written."""
    places = {dtype: place for place, dtype in enumerate(_NAME_OF)}
    kinds: Mapping[str, Any] = tensors
    return {name: tensors[name] for name in sorted(tensors, key=lambda name: (places[kinds[name].dtype], name))}


def _blocks(
    tensors: Mapping[str, torch.Tensor | Readable], about: Mapping[str, str] | None
) -> Iterator[bytes | memoryview]:
    """Return what a file consists of."""
    header: dict[str, Any] = {RESERVED: dict(about)} if about else {}
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
    """A safetensors file whose header was read, and checked against its size.

    Args:
        verify: is called before the first tensor is read.

    Raises:
        CheckpointError: if it can't be read.
    """

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


class Stored:
    """A tensor in files, in one piece or several, of which any part can be read.

    Args:
        pieces: the file of each and its name there, by its place in the tensor. Together they are the tensor.
    """

    def __init__(self, shape: Shape, dtype: torch.dtype, pieces: Mapping[Box, tuple[TensorFile, str]]) -> None:
        self.shape = shape
        self.dtype = dtype
        self._pieces = pieces

    def read(self, offset: Shape | None = None, size: Shape | None = None) -> torch.Tensor:
        """Return the tensor on the CPU, or the part of a size from an offset on, reading no other bytes.

        Raises:
            CheckpointError: if a file can't be read, or is damaged.
        """
        asked = Box((0,) * len(self.shape) if offset is None else offset, self.shape if size is None else size)
        if not asked.is_within(self.shape):
            raise ArgumentError(f"{asked} is not within a tensor of shape {list(self.shape)}")
        tensor = torch.empty(asked.size, dtype=self.dtype)
        for piece, (file, name) in self._pieces.items():
            if (shared := asked.shared_with(piece)) is not None:
                tensor[shared.seen_from(asked.offset)].copy_(file.view(name)[shared.seen_from(piece.offset)])
        return tensor


def load(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file, on the CPU.

    Raises:
        CheckpointError: if it can't be read.
    """
    file = TensorFile(path)
    # Copies: what is read from a mapped file changes with it, or kills the process when it is cut short.
    return {name: file.view(name).clone() for name in file.tensors}


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError) as error:
        raise CheckpointError(f"{str(path)!r} is not a safetensors file: {readable(str(error))}") from error
