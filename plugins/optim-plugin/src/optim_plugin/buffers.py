"""Which buffers of a model an average averages: statistics. All others, such as a queue of keys, it copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from engine_core.errors import ArgumentError, ArgumentTypeError, did_you_mean
from engine_core.parallel import is_statistic

from .weights import Place

__all__ = ["Buffers", "check_buffers", "is_averaged"]

Buffers: TypeAlias = Literal["norms", "average", "copy"] | Callable[[str, torch.Tensor], bool]
"""Those of normalization layers, all, none, or those for which a function of name and buffer returns True.

Whatever it is, buffers that are not floating-point, sparse ones, and u and v of a spectral norm are copied.
"""
_WORDS = ("norms", "average", "copy")


def check_buffers(given: object) -> Buffers:
    """Return it if it says which buffers are averaged.

    Raises:
        ArgumentError: (a ValueError) for an unknown word.
        ArgumentTypeError: (a TypeError) for neither a word nor a function.
    """
    if not callable(given) and not isinstance(given, str):
        raise ArgumentTypeError(
            f"buffers={given!r} ({type(given).__name__}) has to be one of {', '.join(map(repr, _WORDS))}, or a "
            "function that returns True for the name and the tensor of each buffer to average"
        )
    if isinstance(given, str) and given not in _WORDS:
        words = ", ".join(map(repr, _WORDS))
        raise ArgumentError(f"buffers={given!r} is not one of {words}{did_you_mean(given, _WORDS)}")
    return given  # type: ignore[return-value]  # just checked


def is_averaged(place: Place, buffers: Buffers) -> bool:
    """Is what is at the place averaged? Parameters are, other tensors are as `buffers` says."""
    weight = getattr(place.module, place.attribute)
    if weight.layout is not torch.strided or not (weight.is_floating_point() or weight.is_complex()):
        return False
    if place.parameter is not None:
        return True
    if _is_iterated(place.module, place.attribute):
        return False
    if not isinstance(buffers, str):
        return _answer(buffers, place.names[0], weight)
    return buffers == "average" or (buffers == "norms" and is_statistic(place.module, place.attribute))


def _is_iterated(module: nn.Module, attribute: str) -> bool:
    """Is it one of the unit vectors of a spectral norm, which a mean would shorten?"""
    hooks = [hook.name for hook in module._forward_pre_hooks.values() if isinstance(hook, SpectralNorm)]  # noqa: SLF001
    vectors = [f"{name}{end}" for name in hooks for end in ("_u", "_v")]
    return attribute in vectors or (isinstance(module, _SpectralNorm) and attribute in ("_u", "_v"))


def _answer(buffers: Callable[[str, torch.Tensor], object], name: str, buffer: torch.Tensor) -> bool:
    answer = buffers(name, buffer)
    if not isinstance(answer, bool):  # "copy" would count as True
        raise ArgumentTypeError(
            f"the function that buffers is returned {answer!r} for {name!r}: let it return True to average it, "
            "False to copy it"
        )
    return answer
