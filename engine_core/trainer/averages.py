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
    for member in engine.members:
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
