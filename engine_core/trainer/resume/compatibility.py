"""Check that a checkpoint's values are of the same kind as this run's; a mismatch would fail many steps later."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ...errors import CheckpointError

_LARGEST = torch.finfo(torch.float32).max


def check_alike(own: Any, saved: Any, what: str) -> None:
    """Raise unless a saved value, and all that it contains, could replace the run's own; missing entries are fine."""
    if isinstance(own, Mapping) and isinstance(saved, Mapping):
        other = next(iter(own.values()), None) if _counts(own) else None  # a Counter's items are all alike
        for key, value in saved.items():
            check_alike(own.get(key, other), value, f"{what}.{key}")
    elif isinstance(own, (list, tuple)) and isinstance(saved, (list, tuple)):
        for place, (one, other) in enumerate(zip(own, saved, strict=False)):
            check_alike(one, other, f"{what}[{place}]")
    elif own is not None and not _is_alike(own, saved):
        raise CheckpointError(f"{what} is {saved!r:.80} in the checkpoint but {own!r:.80} in this run")


def _counts(own: Mapping[Any, Any]) -> bool:
    return all(type(key) is int and type(value) is int for key, value in own.items())


def _is_alike(own: Any, saved: Any) -> bool:
    if saved is None or _is_number(own):
        return saved is None or _is_number(saved)
    return type(saved) is type(own) if isinstance(own, (bool, str)) else isinstance(saved, type(own))


def _is_number(value: Any) -> bool:
    """Is it a number that a float of torch can hold, or a tensor of one element?"""
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**63
    if not isinstance(value, float) or math.isnan(value):
        return False
    return math.isinf(value) or abs(value) <= _LARGEST  # beyond, an optimizer's step overflows some steps later
