"""One call of a linear layer in a scoring forward, and whether another call repeats it."""
# ruff: noqa: SLF001  only `_version` says whether a tensor was changed in place

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.autograd import forward_ad

__all__ = ["Call", "fits", "have_same_bits"]

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_READ, _OF = 64, 1024
"""How many of how many words are read, if the weights have more."""


class _Weight(NamedTuple):
    """A weight, and what shows whether it was changed: its version misses writes through `.data`."""

    tensor: torch.Tensor
    version: int
    address: int
    total: int
    """A sum over some of its bits, spread over all of it: reading all would cost almost as much as a small product."""

    @classmethod
    def all_of(cls, layer: nn.Linear) -> list[_Weight]:
        tensors: list[torch.Tensor | None] = [layer.weight, layer.bias]
        return [
            cls(tensor, tensor._version, tensor.data_ptr(), _total(tensor)) for tensor in tensors if tensor is not None
        ]

    def is_same(self, other: _Weight) -> bool:
        return self.tensor is other.tensor and self[1:] == other[1:]


class Call(NamedTuple):
    """One call of a layer in the scoring forward."""

    inputs: torch.Tensor
    output: torch.Tensor
    versions: tuple[int, int]
    weights: list[_Weight]

    @classmethod
    def of(cls, layer: nn.Linear, inputs: torch.Tensor, output: torch.Tensor) -> Call:
        """Return a record of what was computed."""
        versions = inputs._version, output._version
        return cls(inputs.detach(), output.detach(), versions, _Weight.all_of(layer))

    def has_form(self, inputs: torch.Tensor, rows: torch.Tensor) -> bool:
        """Do these inputs have the form of this call's, but for `rows`?"""
        there = inputs.device == rows.device == self.output.device and inputs.dtype == self.inputs.dtype
        return there and inputs.shape[:1] == rows.shape and inputs.shape[1:] == self.inputs.shape[1:]

    def was_changed(self) -> bool:
        """Was the input or the output changed in place since?"""
        return (self.inputs._version, self.output._version) != self.versions

    def has_weights(self, layer: nn.Linear) -> bool:
        """Does the layer still have the weights that it had?"""
        now = _Weight.all_of(layer)
        return len(now) == len(self.weights) and all(map(_Weight.is_same, now, self.weights))

    def repeats(self, inputs: torch.Tensor, rows: torch.Tensor) -> bool:
        """Are these inputs, bit for bit, those rows of what the layer got?"""
        return have_same_bits(inputs, self.inputs.index_select(0, rows))

    def rounds_by_place(self, layer: nn.Linear, k: int) -> bool:
        """Does some row have other bits in a product of k rows than in that of all?

        Kernels may round by the position of a row, so each position among all is compared, each among k several times.
        """
        n = len(self.inputs)
        for start in {*range(0, n - k, k), n - k, min(1, n - k)}:
            part = slice(start, start + k)
            if not have_same_bits(nn.Linear.forward(layer, self.inputs[part].clone()), self.output[part]):
                return True
        return False


def fits(layer: nn.Linear, inputs: torch.Tensor) -> bool:
    """Is it known what torch does in such a call?

    A single output feature is a matrix-vector product, which rounds by the position of a row.
    """
    weight = layer.weight
    return (
        type(inputs) is torch.Tensor
        and type(weight) in (nn.Parameter, torch.Tensor)
        and weight.shape[0] > 1
        and inputs.dim() > 1
        and inputs.numel() > 0
        and inputs.is_floating_point()
        and inputs.is_contiguous()
        and not inputs.is_inference()
        and not torch.is_autocast_enabled(inputs.device.type)
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def have_same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Are these contiguous tensors equal bit for bit, including NaN and the sign of zero?"""
    return torch.equal(_words(one), _words(other))


def _total(weight: torch.Tensor) -> int:
    words = _words(weight)
    return int((words.unfold(0, _READ, _OF) if len(words) > _OF else words).sum())


def _words(values: torch.Tensor) -> torch.Tensor:
    """Return the bits, as 64-bit words if they fill whole ones, which reads fastest."""
    flat = values.detach().reshape(-1)  # one row may be contiguous with the strides of many
    size = flat.element_size()
    if flat.numel() * size % 8:
        return flat.view(_WORDS[size])
    return (flat.clone() if flat.storage_offset() * size % 8 else flat).view(torch.int64)
