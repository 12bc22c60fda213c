"""The number formats of training: autocast and the gradient scaler for each precision, and torch's modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from ..batch import map_batch
from ..errors import ArgumentError, did_you_mean

P = ParamSpec("P")
R = TypeVar("R")

PRECISIONS = ("fp32", "amp_bf16", "amp_fp16")


class Precision:
    """`fp32`, `amp_bf16` (CPU and CUDA) or `amp_fp16` (CUDA, with a gradient scaler)."""

    def __init__(self, name: str, device: torch.device) -> None:
        if name not in PRECISIONS:
            raise ArgumentError(f"precision {name!r} is unknown{did_you_mean(str(name), PRECISIONS)}")
        if name == "amp_fp16" and device.type != "cuda":
            raise ArgumentError(f"precision 'amp_fp16' needs a CUDA device, this is {device}; use 'amp_bf16' or 'fp32'")
        self._device_type = device.type
        self._dtype = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}.get(name)
        self.scaler = torch.amp.GradScaler("cuda") if name == "amp_fp16" else None

    def wrap(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return `function` under autocast, or unchanged if there is none."""
        dtype = self._dtype
        if dtype is None:
            return function

        def autocast(*args: P.args, **kwargs: P.kwargs) -> R:
            with torch.autocast(self._device_type, dtype=dtype):
                return function(*args, **kwargs)

        return autocast

    def full(self, outputs: Any) -> Any:
        """Return the outputs of what `wrap` returned, as users and metrics get them: in float32."""
        return outputs if self._dtype is None else in_float32(outputs)


def in_float32(outputs: Any) -> Any:
    """Return outputs with tensors of float32 in place of those of half precision, which NumPy and others refuse."""

    def cast(leaf: Any) -> Any:
        is_half = isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.float16, torch.bfloat16)
        return leaf.float() if is_half else leaf

    return map_batch(outputs, cast)
