"""What the tests of optim-plugin share besides what all tests of training do."""

import copy

import torch
from parts import at, batches, net, trainer

from engine_core import Callback


def weights_of(state):
    return copy.deepcopy(dict(state.model.state_dict()))


def same(one, other):
    """Are the tensors of these names equal, bit for bit?"""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Recorder(Callback):
    """Keeps the weights after each batch, in each evaluation and after it."""

    def __init__(self):
        self.steps = []
        self.evaluated = []
        self.left = []

    def batch_end(self, state, logger):
        self.steps.append(weights_of(state))

    def eval_batch_end(self, state, logger):
        self.evaluated.append(weights_of(state))

    def eval_end(self, state, logger):
        self.left.append(weights_of(state))


def pause_after(batch):
    return at("batch_end", lambda state: state.timestamp.batch == batch and state.pause_training())


def make_trainer(algorithms, *callbacks, model=None, data=None, **settings):
    """Return a trainer for two epochs of four batches of eight rows."""
    given = {"algorithms": algorithms, "callbacks": callbacks, "max_duration": "2ep", "seed": 1, **settings}
    return trainer(data or batches(8, 8, 8, 8), net() if model is None else model, **given)
