"""A LayerNorm that computes in autocast's dtype, with one kernel. Independent of the engine."""

from __future__ import annotations

import importlib
from types import NoneType
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .models import check_model
from .replacement import replace_modules

__all__ = ["ComputeDtypeLayerNorm", "apply_fused_layernorm", "find_apex"]

_SWITCHES = ("activation_relu_or_gelu", "use_nested_tensor")
"""What surgery turns off in torch's encoders, as their evaluation kernel reads layer weights: these stay the same."""


class ComputeDtypeLayerNorm(nn.LayerNorm):
    """Normalise as nn.LayerNorm does, under autocast in autocast's dtype.

    There torch converts to float32 and back on CUDA, and keeps the input's dtype on the CPU.
    The kernel is apex's on CUDA if apex is installed and includes it, else torch's own; both accumulate in float32.
    Without apex, and outside autocast, it equals nn.LayerNorm bit for bit. float64 is not converted, as in autocast.

    Example:
        >>> norm = ComputeDtypeLayerNorm(4)
        >>> with torch.autocast("cpu", dtype=torch.bfloat16):
        ...     norm(torch.randn(2, 4)).dtype, nn.LayerNorm(4)(torch.randn(2, 4)).dtype
        (torch.bfloat16, torch.float32)
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._apex = find_apex()

    @classmethod
    def sharing(cls, norm: nn.LayerNorm) -> ComputeDtypeLayerNorm:
        """Return one with the same parameter objects as another LayerNorm."""
        bias: nn.Parameter | None = norm.bias
        new = cls(norm.normalized_shape, norm.eps, norm.elementwise_affine, bias=bias is not None, device="meta")
        new.weight, new.bias = norm.weight, norm.bias
        return new

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  nn.LayerNorm's name
        """Return the input normalised, in the same shape; under autocast in its dtype."""
        kind = input.device.type
        if input.dtype is torch.float64 or not _is_under_autocast(kind):
            return self._normalise(input, self.weight, self.bias)
        dtype = torch.get_autocast_dtype(kind)
        given: tuple[torch.Tensor | None, ...] = (self.weight, self.bias)
        weight, bias = (None if parameter is None else parameter.to(dtype) for parameter in given)
        with torch.autocast(kind, enabled=False):
            return self._normalise(input.to(dtype), weight, bias)

    def _normalise(self, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
        kernel: Any = self._apex
        if kernel is None or not x.is_cuda or torch.compiler.is_compiling() or (weight is None) != (bias is None):
            return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)
        if weight is None:
            return kernel.fused_layer_norm(x, self.normalized_shape, self.eps)  # type: ignore[no-any-return]
        return kernel.fused_layer_norm_affine(x, weight, bias, self.normalized_shape, self.eps)  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_apex"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._apex = find_apex()


def apply_fused_layernorm(model: nn.Module) -> list[str]:
    """Replace each nn.LayerNorm in a model, and return the names of what was replaced.

    Subclasses of nn.LayerNorm are not replaced. The new modules hold the parameter objects of the old ones, so
    optimizers are not affected.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for a model that is one itself, or not a model.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8))
        >>> weight = model[1].weight
        >>> apply_fused_layernorm(model), model[1].weight is weight
        (['1'], True)
    """
    check_model(model)
    switches = [(m, key, vars(m)[key]) for m in model.modules() for key in _SWITCHES if key in vars(m)]
    replaced = replace_modules(model, {nn.LayerNorm: _policy})
    for encoder, key, value in switches:
        setattr(encoder, key, value)
    return replaced


def find_apex() -> Any:
    """Return apex's module of fused layer norms, None if apex or its kernel is not installed."""
    try:
        importlib.import_module("fused_layer_norm_cuda")  # apex itself looks for it only in a forward
        return importlib.import_module("apex.normalization.fused_layer_norm")
    except ImportError:
        return None


def _policy(norm: nn.Module, _: str) -> nn.Module | None:
    if type(norm) is not nn.LayerNorm:
        return None
    given: tuple[object, ...] = (norm.weight, norm.bias)
    if not all(isinstance(one, (nn.Parameter, NoneType)) for one in given):  # else it is computed before each forward
        return None
    return ComputeDtypeLayerNorm.sharing(norm)


def _is_under_autocast(kind: str) -> bool:
    # torch 2.4 can't compile the question whether this kind of device has autocast; those that are compiled for do
    has_autocast = torch.compiler.is_compiling() or torch.amp.is_autocast_available(kind)
    return has_autocast and torch.is_autocast_enabled(kind)
