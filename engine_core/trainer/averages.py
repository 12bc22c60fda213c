"""The averaged weights that evaluations use, as the algorithm that keeps them gives them. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from ..algorithm import is_averaging
from ..engine import Engine
from ..parallel import mark_of_tensors


class Average(NamedTuple):
    """Averaged weights, and the algorithm that keeps them by its unique and its registered name."""

    algorithm: str
    registered: str
    weights: Mapping[str, torch.Tensor]


def find_average(engine: Engine) -> Average | None:
    """Return the average of the engine's averaging algorithm; None if there is no such algorithm, or no average yet."""
    for member in engine.lineup[0]:
        if is_averaging(member.algorithm):
            averaging: Any = member.algorithm
            weights = averaging.averaged_state_dict()
            return Average(member.name, member.registered, weights) if weights else None
    return None


def mark_of_evaluated(engine: Engine) -> int:
    """Return a number that differs if what evaluations look at differs: the model's weights, and their average."""
    model: Any = engine.state.model
    average = find_average(engine)
    weights = [*model.parameters(), *model.buffers(), *(average.weights.values() if average is not None else ())]
    return mark_of_tensors(weights)


def place_of_average(average: Average, states: Mapping[str, Any]) -> dict[str, Any]:
    """Return, for a manifest, the algorithm and where in its saved state the average is: the tensor of each weight.

    Args:
        states: the algorithms' states by name as `flatten` returned them; none of their tensors is copied.
    """
    tensors = _tensors_named(average.weights.keys(), states.get(average.algorithm))
    return {"algorithm": average.algorithm, "registered": average.registered, "tensors": tensors}


def _tensors_named(names: Any, state: Any) -> dict[str, str]:
    """Return the names of the tensors in the first mapping of a flattened state that has exactly these keys."""
    if not isinstance(state, dict):
        return {}
    if state.keys() == set(names):
        return {name: value["name"] for name, value in state.items() if isinstance(value, dict) and "name" in value}
    return next((found for value in state.values() if (found := _tensors_named(names, value))), {})
