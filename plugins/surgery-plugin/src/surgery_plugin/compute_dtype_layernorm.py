"""A LayerNorm and a GroupNorm that compute in autocast's dtype, with one kernel. Independent of the engine."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import NoneType
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from engine_core.arguments import check_flag

from .models import check_model
from .replacement import Policy, replace_modules

__all__ = ["ComputeDtypeGroupNorm", "ComputeDtypeLayerNorm", "apply_fused_layernorm", "find_apex"]

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
        return _in_compute_dtype(self._normalise, input, self.weight, self.bias)

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


class ComputeDtypeGroupNorm(nn.GroupNorm):
    """Normalise as nn.GroupNorm does, under autocast in autocast's dtype, with torch's kernel.

    There torch converts to float32 and back on CUDA, and keeps the input's dtype on the CPU. The kernel accumulates in
    float32. Outside autocast it equals nn.GroupNorm bit for bit.

    Example:
        >>> norm = ComputeDtypeGroupNorm(2, 4)
        >>> with torch.autocast("cpu", dtype=torch.bfloat16):
        ...     norm(torch.randn(2, 4, 3, 3)).dtype
        torch.bfloat16
    """

    @classmethod
    def sharing(cls, norm: nn.GroupNorm) -> ComputeDtypeGroupNorm:
        """Return one with the same parameter objects as another GroupNorm."""
        new = cls(norm.num_groups, norm.num_channels, norm.eps, norm.affine, device="meta")
        new.weight, new.bias = norm.weight, norm.bias
        return new

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  nn.GroupNorm's name
        """Return the input normalised, in the same shape; under autocast in its dtype."""
        return _in_compute_dtype(self._normalise, input, self.weight, self.bias)

    def _normalise(self, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
        return F.group_norm(x, self.num_groups, weight, bias, self.eps)


def apply_fused_layernorm(model: nn.Module, *, group_norm: bool = False) -> list[str]:
    """Replace each nn.LayerNorm in a model, and return the names of what was replaced.

    Subclasses of nn.LayerNorm are not replaced. The new modules hold the parameter objects of the old ones, so
    optimizers are not affected.

    Args:
        group_norm: replace each nn.GroupNorm too.

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
    policies: dict[type[nn.Module], Policy] = {nn.LayerNorm: _policy}
    if check_flag("group_norm", group_norm):
        policies[nn.GroupNorm] = _policy
    replaced = replace_modules(model, policies)
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


def _policy(norm: Any, _: str) -> nn.Module | None:
    if type(norm) not in (nn.LayerNorm, nn.GroupNorm):
        return None
    if not all(isinstance(one, (nn.Parameter, NoneType)) for one in (norm.weight, norm.bias)):
        return None  # what is no parameter is computed before each forward
    kind = ComputeDtypeLayerNorm if type(norm) is nn.LayerNorm else ComputeDtypeGroupNorm
    return kind.sharing(norm)


def _in_compute_dtype(
    normalise: Callable[..., torch.Tensor], x: torch.Tensor, *parameters: torch.Tensor | None
) -> torch.Tensor:
    """Normalise, under autocast with all in its dtype; float64 is left alone."""
    kind = x.device.type
    if x.dtype is torch.float64 or not _is_under_autocast(kind):
        return normalise(x, *parameters)
    dtype = torch.get_autocast_dtype(kind)
    low = [None if parameter is None else parameter.to(dtype) for parameter in parameters]
    with torch.autocast(kind, enabled=False):
        return normalise(x.to(dtype), *low)


def _is_under_autocast(kind: str) -> bool:
    # torch 2.4 can't compile the question whether this kind of device has autocast; those that are compiled for do
    has_autocast = torch.compiler.is_compiling() or torch.amp.is_autocast_available(kind)
    return has_autocast and torch.is_autocast_enabled(kind)
