"""Digests of tensors that depend on every bit, computed where the tensor is. It draws nothing and changes nothing."""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any

import torch

_PIECE = 1 << 20  # eight-byte words mixed at a time, which takes a few times as much memory
_MIXERS = (-49064778989728563, -4265267296055464877)  # of MurmurHash3's finalizer


def parts_of(tensor: torch.Tensor) -> dict[str, torch.Tensor] | None:
    """Return the tensors that a tensor without memory of its own consists of."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        return {name: getattr(tensor, name) for name in flatten()[0]}
    if tensor.is_nested:
        return {f"[{place}]": part for place, part in enumerate(tensor.detach().unbind())}
    if tensor.layout is torch.sparse_coo:
        return {"indices": tensor._indices(), "values": tensor._values()}  # noqa: SLF001  the public ones coalesce
    return None if tensor.layout is torch.strided else {"dense": tensor.detach().to_dense()}


def digest_tensor(tensor: torch.Tensor) -> str | torch.Tensor:
    """Return a digest of the bits; for a tensor on a GPU, an integer that is still there."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.is_cuda:
        return _mixed(plain.contiguous())
    plain = plain.cpu().contiguous()
    return digest_bytes((ctypes.c_char * plain.nbytes).from_address(plain.data_ptr()))


def digest_bytes(data: Any) -> str:
    """Return a digest of an object with the buffer protocol."""
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()  # the fastest in hashlib


def _mixed(tensor: torch.Tensor) -> torch.Tensor:
    """Return an integer () that depends on every bit of a contiguous tensor and its place, computed on its device."""
    octets = tensor.reshape(-1).view(torch.uint8)  # (bytes,)
    if octets.shape[0] % 8 or octets.storage_offset() % 8:
        padded = octets.new_zeros(-(-octets.shape[0] // 8) * 8)
        padded[: octets.shape[0]] = octets
        octets = padded
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for number, words in enumerate(torch.split(octets.view(torch.int64), _PIECE)):
        start = number * _PIECE
        mixed = torch.arange(start, start + words.shape[0], device=tensor.device)
        mixed.mul_(_MIXERS[0]).bitwise_xor_(words)
        for mixer in _MIXERS:
            mixed.bitwise_xor_((mixed >> 33).bitwise_and_((1 << 31) - 1)).mul_(mixer)
        total += mixed.bitwise_xor_((mixed >> 33).bitwise_and_((1 << 31) - 1)).sum()
    return total
