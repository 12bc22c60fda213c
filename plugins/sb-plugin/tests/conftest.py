"""What the tests of sb-plugin share besides what all plugins' tests do: an engine to drive."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Engine, Event, Logger, State

X, Y = torch.randn(8, 3, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 4


@pytest.fixture
def engine_of():
    """Return a function that makes an engine with one algorithm, past INIT, with a batch of 8 rows."""
    engines = []

    def make(algorithm, logger=None, **fields):
        torch.manual_seed(3)
        given = {"model": nn.Linear(3, 4), "loss_fn": F.cross_entropy, "seed": 7, "batch": (X, Y), **fields}
        engines.append(Engine(State(**{"algorithms": [algorithm], **given}), logger or Logger()))
        engines[-1].run_event(Event.INIT)
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def pruned():
    """Return a function that lets an engine prune a batch, and gives what is left of it."""

    def prune(engine, batch=(X, Y)):
        engine.state.batch = batch
        engine.run_event(Event.AFTER_DATALOADER)
        return engine.state.batch

    return prune
