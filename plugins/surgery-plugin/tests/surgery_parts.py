"""What the tests of surgery-plugin share: INIT alone, digits, a training on them."""

import copy
import pickle
from typing import Any

import torch
from parts import trainer
from sklearn.datasets import load_digits
from torch import nn

from engine_core import Engine, Event, Logger, State, Trainer
from engine_core_author import RecordingDestination


def run_init(model: nn.Module | None, *algorithms: Any, seed: int = 3, **fields: Any) -> list[dict[str, Any]]:
    """Fire INIT; return what is logged."""
    destination = RecordingDestination()
    state = State(model=model, algorithms=list(algorithms), seed=seed, **fields)
    with Engine(state, Logger([destination])) as engine:
        engine.run_event(Event.INIT)
    return [metrics for _, metrics in destination.metrics]


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (1797, 1, 8, 8) and classes, in a random order."""
    data: Any = load_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    return torch.tensor(data.images, dtype=torch.float32)[order, None] / 16, torch.tensor(data.target)[order]


def train_on_digits(model: nn.Module, algorithms: Any = (), *, images: Any = None, **settings: Any) -> Trainer:
    """Train on batches of 60 of the first 1,200 digits."""
    x, y = digits() if images is None else images
    data = list(zip(x[:1200].split(60), y[:1200].split(60), strict=True))
    with trainer(data, model, algorithms=algorithms, **{"seed": 1, **settings}) as made:
        made.fit()
    return made  # type: ignore[no-any-return]


def twins(module: nn.Module) -> list[Any]:
    """Return a copy and what is left after pickling."""
    return [copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
