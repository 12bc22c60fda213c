"""A kit's defaults: a tiny net and its parts, and the installed algorithms. Imports torch only where one needs it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from engine_core.errors import PluginError
from engine_core.registry import Registry

if TYPE_CHECKING:
    import torch


def default_model() -> torch.nn.Module:
    """Return a net for inputs (n, 1, 8, 8) and 4 classes, with the same weights each time."""
    import torch  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415

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


def default_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return 4 batches of inputs (8, 1, 8, 8) and classes (8,), the same each time."""
    import torch  # noqa: PLC0415

    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(32, 1, 8, 8, generator=generator)
    targets = torch.randint(4, (32,), generator=generator)
    return [(inputs[start : start + 8].clone(), targets[start : start + 8].clone()) for start in range(0, 32, 8)]


def default_loss() -> Callable[[Any, Any], Any]:
    """Return cross entropy."""
    import torch  # noqa: PLC0415

    return torch.nn.CrossEntropyLoss()


def default_optimizer(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """Return SGD with momentum."""
    import torch  # noqa: PLC0415

    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def installed_algorithms() -> list[Any]:
    """Return one of each installed algorithm that can be imported and made without arguments."""
    registry = Registry.scan()
    made = []
    for record in registry.records:
        if record.kind != "algorithms" or record.status in ("disabled", "broken"):
            continue
        try:
            algorithm = registry.load("algorithms", record.qualified_name)
        except PluginError:  # the test of one plugin does not need the others to work
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                made.append(algorithm())
            except (TypeError, ValueError):  # it needs arguments
                continue
    return made
