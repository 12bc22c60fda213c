"""What the tests of optim-plugin share besides what all tests of training do."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from parts import at, batches, net, trainer

from engine_core import Callback, Logger, Trainer

Weights = dict[str, torch.Tensor]


def weights_of(state: Any) -> Weights:
    return copy.deepcopy(dict(state.model.state_dict()))


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Are the tensors of these names equal, bit for bit?"""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Recorder(Callback):
    """Keeps the weights after each batch, in each evaluation and after it."""

    def __init__(self) -> None:
        self.steps: list[Weights] = []
        self.evaluated: list[Weights] = []
        self.left: list[Weights] = []

    def batch_end(self, state: Any, logger: Logger) -> None:
        self.steps.append(weights_of(state))

    def eval_batch_end(self, state: Any, logger: Logger) -> None:
        self.evaluated.append(weights_of(state))

    def eval_end(self, state: Any, logger: Logger) -> None:
        self.left.append(weights_of(state))


def pause_after(batch: int) -> Callback:
    return at("batch_end", lambda state: state.timestamp.batch == batch and state.pause_training())


def make_trainer(algorithms: Any, *callbacks: Any, model: Any = None, data: Any = None, **settings: Any) -> Trainer:
    """Return a trainer for two epochs of four batches of eight rows."""
    given = {"algorithms": algorithms, "callbacks": callbacks, "max_duration": "2ep", "seed": 1, **settings}
    made: Trainer = trainer(data or batches(8, 8, 8, 8), net() if model is None else model, **given)
    return made
