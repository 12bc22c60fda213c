"""What the programs of these tests have in common: how they make a trainer, and what keeps what it logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from engine_core import LoggerDestination, Trainer


def trainer_of(model: nn.Module, loader: Any = None, **settings: Any) -> Trainer:
    """Return a trainer for two epochs of classification, unless the settings say otherwise."""
    given: dict[str, Any] = {
        "max_duration": "2ep",
        "loss_fn": nn.CrossEntropyLoss(),
        "optimizers": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "device": "cpu",
        "seed": 3,
        "progress_bar": False,
        **settings,
    }
    return Trainer(model, loader, **given)


def fit(model: nn.Module, loader: Any, **settings: Any) -> Trainer:
    """Train a model as `trainer_of` says, and return the closed trainer."""
    with trainer_of(model, loader, **settings) as trainer:
        trainer.fit()
    return trainer


class Logs(LoggerDestination):
    """Keeps what is logged, but for times."""

    every_rank = True

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None) -> None:
        kept = {name: float(value) for name, value in metrics.items() if "time/" not in name}
        self.rows += [[step, kept]] if kept else []
