"""What is logged as plain Python values, and what else a destination tells of a run. Knows no destination."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..event import Event
from ..files import finite
from ..logger import Logger

_LARGEST = 2**63
"""Integers beyond are text: many readers have none, and Python refuses to write very long ones."""


def plain(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values without tensors and arrays: as numbers and lists.

    Example:
        >>> import torch
        >>> plain({"loss": torch.tensor(0.5), "kept": torch.tensor([1, 2]), "who": "me"})
        {'loss': 0.5, 'kept': [1, 2], 'who': 'me'}
    """
    return {str(name): v.tolist() if hasattr(v, "tolist") else v for name, v in metrics.items()}


def in_json(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as JSON can hold them, whatever they are; only a number may still be NaN or infinite.

    Example:
        >>> in_json({"loss": float("nan"), "kept": [1.0, float("inf")], "who": Ellipsis})
        {'loss': nan, 'kept': [1.0, None], 'who': 'Ellipsis'}
    """
    return {str(name): _in_json(value) for name, value in metrics.items()}


def _in_json(value: Any) -> Any:
    try:
        value = value.tolist() if hasattr(value, "tolist") else value
        if value is None or isinstance(value, (float, str)) or (isinstance(value, int) and abs(value) < _LARGEST):
            return value
        return str(value) if isinstance(value, int) else json.loads(json.dumps(finite(value), default=str))
    except Exception:  # noqa: BLE001  it holds itself, say, or is the user's own and can't be shown
        return f"<{type(value).__name__}>"


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return those of the values that are numbers, or tensors and arrays of one element; NaN is a number.

    Example:
        >>> import torch
        >>> numbers({"loss": torch.tensor([[0.5]]), "kept": torch.tensor([1, 2]), "rows": 3, "who": "me"})
        {'loss': 0.5, 'rows': 3}
    """
    found = {}
    for name, value in plain(metrics).items():
        while isinstance(value, list) and len(value) == 1:
            (value,) = value  # noqa: PLW2901  out of its brackets
        if isinstance(value, (int, float)):
            found[name] = value
    return found


def orders(logger: Logger) -> dict[str, str]:
    """Return the order of the algorithms at each event that has some, a line for each with the reason for its place.

    Example:
        >>> orders(Logger())
        {}
    """
    found = {event.value: logger.explain(event) for event in Event}
    return {
        event: "\n".join(f"{place}. {each.algorithm}: {each.why}" for place, each in enumerate(order, 1))
        for event, order in found.items()
        if order
    }
