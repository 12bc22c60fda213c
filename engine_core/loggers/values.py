"""What is logged as plain Python values, and what else a destination tells of a run. Knows no destination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..event import Event
from ..logger import Logger


def plain(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values without tensors and arrays: as numbers and lists.

    Example:
        >>> import torch
        >>> plain({"loss": torch.tensor(0.5), "kept": torch.tensor([1, 2]), "who": "me"})
        {'loss': 0.5, 'kept': [1, 2], 'who': 'me'}
    """
    return {str(name): v.tolist() if hasattr(v, "tolist") else v for name, v in metrics.items()}


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
