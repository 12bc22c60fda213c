"""What the programs of these tests have in common: how they make a trainer, and what keeps what it logs."""

import torch
from torch import nn

from engine_core import LoggerDestination, Trainer


def trainer_of(model, loader=None, **settings):
    """Return a trainer for two epochs of classification, unless the settings say otherwise."""
    given = {
        "max_duration": "2ep",
        "loss_fn": nn.CrossEntropyLoss(),
        "optimizers": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "device": "cpu",
        "seed": 3,
        "progress_bar": False,
        **settings,
    }
    return Trainer(model, loader, **given)


def fit(model, loader, **settings):
    """Train a model as `trainer_of` says, and return the closed trainer."""
    with trainer_of(model, loader, **settings) as trainer:
        trainer.fit()
    return trainer


class Logs(LoggerDestination):
    """Keeps what is logged, but for times."""

    every_rank = True

    def __init__(self):
        self.rows = []

    def log_metrics(self, metrics, step):
        kept = {name: float(value) for name, value in metrics.items() if "time/" not in name}
        self.rows += [[step, kept]] if kept else []
