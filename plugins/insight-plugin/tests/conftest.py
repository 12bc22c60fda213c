"""What the tests of insight-plugin share besides what all plugins' tests do: a small run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Trainer
from engine_core_author import RecordingDestination


class Seen(RecordingDestination):
    """Keeps what is logged, and looks it up by name."""

    def values(self, name: str) -> list[tuple[int, Any]]:
        """Return step and value of each time this was logged."""
        return [(step, metrics[name]) for step, metrics in self.metrics if name in metrics]

    def names(self, first: str) -> list[str]:
        """Return the names that begin with a word, in the order they came."""
        return list(dict.fromkeys(name for _, m in self.metrics for name in m if name.startswith(f"{first}/")))


def batches(*sizes: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return a loader with batches of these sizes, of 4 inputs and 3 classes."""
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 4, generator=generator), torch.randint(3, (size,), generator=generator)) for size in sizes
    ]


def net() -> nn.Module:
    """Return a net with BatchNorm and dropout, always with the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 3))


@pytest.fixture
def run() -> Callable[..., Any]:
    """Return a function that trains a model with callbacks, and gives its trainer, closed, and what was logged."""

    def train(model: Any = None, callbacks: Any = (), **settings: Any) -> tuple[Any, Seen]:
        seen, model = Seen(), net() if model is None else model
        given = {
            "train_dataloader": batches(8, 8, 5, 8),
            "max_duration": "2ep",
            "loss_fn": F.cross_entropy,
            "optimizers": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
            "loggers": seen,
            "device": "cpu",
            "seed": 3,
            "progress_bar": False,
            **settings,
        }
        torch.manual_seed(0)
        with Trainer(model, callbacks=callbacks, **given) as trainer:
            trainer.fit()
        return trainer, seen

    return train
