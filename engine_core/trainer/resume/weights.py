"""Weights by name into a model: what is missing, what is too many, what has another shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...errors import CheckpointError, CheckpointWarning, suggestion
from ...messages import warn

__all__ = ["is_by_weights", "load_weights"]

_SHOWN = 5


def load_weights(
    model: Any, weights: Mapping[str, Any], *, strict: bool, casts: bool = False, left_too: str = ""
) -> bool:
    """Load weights and buffers by their names in the model's state_dict; say whether all of them fit.

    Args:
        strict: all has to fit; else what does not is left as it is, with one warning that names it.
        casts: does a weight fit that is of another floating type, as one in float32 for a model in bfloat16?
        left_too: what the warning says of the rest of the checkpoint.

    Raises:
        CheckpointError: if something does not fit, with the names and the nearest ones; nothing is loaded then.
    """
    own = model.state_dict()
    missing = [name for name in own if name not in weights]
    foreign = [name for name in weights if name not in own]
    unlike = {
        name: difference
        for name in own
        if name in weights and (difference := _difference(weights[name], own[name], casts=casts))
    }
    lines = [
        *_listed("is missing in the checkpoint", missing, foreign),
        *_listed("is not in the model", foreign, missing),
        *(f"{name!r} is {difference}" for name, difference in list(unlike.items())[:_SHOWN]),
    ]
    if lines and strict:
        raise CheckpointError("\n  ".join(["the weights are those of another model:", *lines]))
    if lines:
        warn("\n  ".join(["not all weights were loaded:", *lines, *filter(None, [left_too])]), CheckpointWarning)
    fitting = {name: value for name, value in weights.items() if name in own and name not in unlike}
    model.load_state_dict({**own, **fitting})
    return not lines


def _listed(what: str, names: list[str], others: list[str]) -> list[str]:
    lines = [f"{name!r} {what}{suggestion(name, others)}" for name in names[:_SHOWN]]
    return [*lines, f"... and {len(names) - _SHOWN} more such"] if len(names) > _SHOWN else lines


def is_by_weights(state: Any, weights: Mapping[str, Any]) -> bool:
    """Does a state hold tensors by names of the weights, as an average of them does? Then it is of that model alone.

    Example:
        >>> is_by_weights({"average": {"0.bias": torch.ones(2)}, "count": 3}, {"0.bias": torch.zeros(2)})
        True
    """
    if isinstance(state, (list, tuple)):
        return any(is_by_weights(item, weights) for item in state)
    if not isinstance(state, Mapping):
        return False
    return any((k in weights and isinstance(v, torch.Tensor)) or is_by_weights(v, weights) for k, v in state.items())


def _difference(saved: Any, own: Any, *, casts: bool) -> str:
    """Return in what a saved value is not of the kind that the model has, or nothing."""
    then, now = _shape(saved), _shape(own)
    if then == now and isinstance(own, torch.Tensor) and saved.dtype is not own.dtype:
        if casts and saved.is_floating_point() and own.is_floating_point():
            return ""
        then, now = saved.dtype, own.dtype
    return "" if then == now else f"{then} in the checkpoint and {now} in the model"


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
