"""What the tests of replacement share: a net, batches, a Trainer, a comparison of trees, an exception's notes."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from engine_core import Trainer


def net() -> Any:
    """Return a net of 4 inputs and 3 classes, always with the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.0), nn.Linear(6, 3))


def batches() -> Any:
    """Return a loader of two batches of 8 rows."""
    drawn = torch.Generator().manual_seed(0)
    return [(torch.randn(8, 4, generator=drawn), torch.randint(3, (8,), generator=drawn)) for _ in range(2)]


def trainer(model: Any = None, **settings: Any) -> Any:
    """Return a Trainer with a model, data, a loss and SGD, unless the settings say otherwise."""
    given = {
        "max_duration": "1ep",
        "loss_fn": nn.CrossEntropyLoss(),
        "optimizers": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "device": "cpu",
        "progress_bar": False,
        **settings,
    }
    return Trainer(net() if model is None else model, batches(), **given)


def notes(error: pytest.ExceptionInfo[BaseException]) -> list[str]:
    """Return the notes of an exception."""
    return list(getattr(error.value, "__notes__", ()))


def same(a: Any, b: Any) -> bool:
    """Are two trees of tensors and values equal, number for number?"""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)
