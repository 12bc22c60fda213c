"""What the tests of surgery-plugin share: INIT alone, digits, a training on them."""

import copy
import pickle

import torch
from parts import trainer
from sklearn.datasets import load_digits

from engine_core import Engine, Event, Logger, State
from engine_core_author import RecordingDestination


def run_init(model, *algorithms, seed=3, **fields):
    """Fire INIT; return what is logged."""
    destination = RecordingDestination()
    state = State(model=model, algorithms=list(algorithms), seed=seed, **fields)
    with Engine(state, Logger([destination])) as engine:
        engine.run_event(Event.INIT)
    return [metrics for _, metrics in destination.metrics]


def digits():
    """Return images (1797, 1, 8, 8) and classes, in a random order."""
    data = load_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    return torch.tensor(data.images, dtype=torch.float32)[order, None] / 16, torch.tensor(data.target)[order]


def train_on_digits(model, algorithms=(), *, images=None, **settings):
    """Train on batches of 60 of the first 1,200 digits."""
    x, y = digits() if images is None else images
    data = list(zip(x[:1200].split(60), y[:1200].split(60), strict=True))
    with trainer(data, model, algorithms=algorithms, **{"seed": 1, **settings}) as made:
        made.fit()
    return made


def twins(module):
    """Return a copy and what is left after pickling."""
    return [copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
