"""What surgery is going to do: which policy a module gets, and what it gave for which module, where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

__all__ = ["FLOATS", "Policy", "Replacement", "Surroundings", "title"]

Policy: TypeAlias = Callable[[Any, str], nn.Module | None]
"""Gets a module of its key's type and its qualified name; returns what takes its place, or None to leave it."""

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""The dtypes that a model as a whole is cast to; anything else was chosen on purpose."""


@dataclass(frozen=True)
class Surroundings:
    """Where the tensors of a place are: its own, or if it has none, those of the nearest module around it."""

    devices: frozenset[torch.device]
    dtypes: frozenset[torch.dtype]


@dataclass(frozen=True, eq=False)
class Replacement:
    """A module, what takes its place, the first of its names, and the modules around it there, the model first."""

    old: nn.Module
    new: nn.Module
    name: str
    above: tuple[nn.Module, ...]
    surroundings: Surroundings


def title(name: str, module: nn.Module) -> str:
    """Return how messages call a module.

    Example:
        >>> title("features.0", nn.ReLU())
        "'features.0' (ReLU)"
    """
    return f"{name!r} ({type(module).__name__})" if name else f"the model itself ({type(module).__name__})"
