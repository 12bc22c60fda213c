"""Load weights into a model by name, and report those that are missing, unknown or of another shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ...checkpoint import Stored
from ...errors import CheckpointError, CheckpointWarning, suggestion
from ...messages import warn
from ...parallel import as_in

_SHOWN = 5


def load_weights(
    model: Any, weights: Mapping[str, Any], *, strict: bool, casts: bool = False, left_too: str = ""
) -> bool:
    """Load weights and buffers by their names in the model's state_dict; return whether all of them fit.

    Args:
        strict: everything has to fit, or nothing is loaded; else what does not fit stays, and one warning lists it.
        casts: accept weights of another floating type, such as float32 for a bfloat16 model.
        left_too: the warning's last line, about the rest of the checkpoint.
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
        *_listed("is missing from the checkpoint", missing, foreign),
        *_listed("is not in the model", foreign, missing),
        *(f"{name!r} is {difference}" for name, difference in list(unlike.items())[:_SHOWN]),
    ]
    if lines and strict:
        raise CheckpointError("\n  ".join(["the weights are another model's:", *lines]))
    if lines:
        warn("\n  ".join(["not all weights were loaded:", *lines, *filter(None, [left_too])]), CheckpointWarning)
    fitting = {name: as_in(value, own[name]) for name, value in weights.items() if name in own and name not in unlike}
    model.load_state_dict({**own, **fitting})  # all names, or torch raises for what is missing
    return not lines


def _listed(what: str, names: list[str], others: list[str]) -> list[str]:
    lines = [f"{name!r} {what}{suggestion(name, others)}" for name in names[:_SHOWN]]
    return [*lines, f"... and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else lines


def is_by_weights(state: Any, weights: Mapping[str, Any]) -> bool:
    """Does a state hold tensors under the weights' names, as an average does? Then it belongs to that model alone."""
    if isinstance(state, (list, tuple)):
        return any(is_by_weights(item, weights) for item in state)
    if not isinstance(state, Mapping):
        return False
    kinds = (torch.Tensor, Stored)
    return any((k in weights and isinstance(v, kinds)) or is_by_weights(v, weights) for k, v in state.items())


def _difference(saved: Any, own: Any, *, casts: bool) -> str:
    """Return how a saved value's shape, type or dtype differs from the model's, or nothing."""
    if is_lazy(own) and isinstance(saved, (torch.Tensor, Stored)):
        return ""  # it has no shape yet, and takes that of what is loaded
    then, now = _shape(saved), _shape(own)
    if then == now and isinstance(own, torch.Tensor) and saved.dtype is not own.dtype:
        if casts and saved.is_floating_point() and own.is_floating_point():
            return ""
        then, now = saved.dtype, own.dtype
    return "" if then == now else f"{then} in the checkpoint and {now} in the model"


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, (torch.Tensor, Stored)) else type(value).__name__
