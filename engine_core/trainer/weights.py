"""Weights by name into a model: what is missing, what is too many, what has another shape."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from ..errors import CheckpointError, CheckpointWarning, suggestion

__all__ = ["load_weights"]

_SHOWN = 5


def load_weights(model: Any, weights: Mapping[str, Any], *, strict: bool) -> bool:
    """Load weights and buffers by their names in the model's state_dict; say whether all of them fit.

    Args:
        strict: all has to fit; else what does not is left as it is, with one warning that names it.

    Raises:
        CheckpointError: if something does not fit, with the names and the nearest ones; nothing is loaded then.
    """
    own = model.state_dict()
    missing = [name for name in own if name not in weights]
    foreign = [name for name in weights if name not in own]
    reshaped = [name for name in own if name in weights and _shape(own[name]) != _shape(weights[name])]
    lines = [
        *_listed("is missing in the checkpoint", missing, foreign),
        *_listed("is not in the model", foreign, missing),
        *(
            f"{name!r} is {_shape(weights[name])} in the checkpoint and {_shape(own[name])} in the model"
            for name in reshaped[:_SHOWN]
        ),
    ]
    if lines and strict:
        raise CheckpointError("\n  ".join(["the weights are those of another model:", *lines]))
    if lines:
        warnings.warn("\n  ".join(["not all weights were loaded:", *lines]), CheckpointWarning, stacklevel=2)
    fitting = {name: value for name, value in weights.items() if name in own and name not in reshaped}
    model.load_state_dict({**own, **fitting})
    return not lines


def _listed(what: str, names: list[str], others: list[str]) -> list[str]:
    lines = [f"{name!r} {what}{suggestion(name, others)}" for name in names[:_SHOWN]]
    return [*lines, f"... and {len(names) - _SHOWN} more such"] if len(names) > _SHOWN else lines


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
