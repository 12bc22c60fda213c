"""What the conformance kit trains by default: a tiny conv net, its batches and loss, in a calm environment."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..randomness import preserve_generators


def make_model() -> nn.Module:
    """Return a net for inputs (n, 1, 8, 8) and 4 classes, with the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 16),
            nn.LayerNorm(16),
            nn.ReLU(),
            nn.Linear(16, 4),
        )


def make_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return 4 batches of inputs (8, 1, 8, 8) and classes (8,), the same each time."""
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(32, 1, 8, 8, generator=generator)
    targets = torch.randint(4, (32,), generator=generator)
    return [(inputs[start : start + 8].clone(), targets[start : start + 8].clone()) for start in range(0, 32, 8)]


def make_loss() -> Callable[[Any, Any], Any]:
    """Return cross entropy."""
    return nn.CrossEntropyLoss()


def make_optimizers(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """Return SGD with momentum."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


@contextmanager
def calm() -> Iterator[None]:
    """Use one thread, keep warnings from raising, and restore the global generators at the end."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with preserve_generators(torch.device("cpu")), warnings.catch_warnings():
            filters: Any = warnings.filters
            filters[:] = [("default" if how == "error" else how, *rest) for how, *rest in filters]
            yield
    finally:
        torch.set_num_threads(threads)
