"""Data and models, and metrics that depend on which rows they see, in which order and in which batches."""

from __future__ import annotations

from typing import Any

import torch
import torchmetrics
from torch import nn
from torch.utils import data as torch_data
from torchmetrics import classification as of_classes

INPUTS = torch.randn(53, 6, generator=torch.Generator().manual_seed(0))
TARGETS = torch.randint(0, 4, (53,), generator=torch.Generator().manual_seed(1))
DATA = torch_data.TensorDataset(INPUTS, TARGETS)


class Stream(torch_data.IterableDataset):
    """Examples without a number."""

    def __iter__(self):
        yield from DATA


def rank_here():
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))


class OwnLoss(nn.Module):
    """A model with its own loss, whose outputs are a mapping and whose targets are a tuple."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, batch):
        return {"logits": self.net(batch[0])}

    def loss(self, outputs, batch):
        return nn.functional.cross_entropy(outputs["logits"], batch[1])

    def eval_forward(self, batch):
        return self(batch), (batch[1], batch[1] * 2)


def loader(**settings):
    return torch_data.DataLoader(DATA, **{"batch_size": 8, **settings})


def subset(rows, **settings):
    return torch_data.DataLoader(torch_data.Subset(DATA, range(rows)), **settings)


def a_list():
    return [(INPUTS[a:b], TARGETS[a:b]) for a, b in [(0, 1), (1, 9), (9, 12), (12, 13)]]


class OfOneRank:
    """A metric of one's own that can't be merged."""

    def reset(self):
        self.total, self.rows, self.largest = 0.0, 0, []

    def update(self, outputs, targets):
        self.total += float((outputs[:, 0].double() * targets).sum())
        self.rows += len(targets)
        self.largest.append(outputs.max(0).values)

    def compute(self):
        return {"mean": self.total / self.rows, "rows": self.rows, "largest": torch.stack(self.largest).amax()}


class Merged(OfOneRank):
    """One that can, by its attributes."""

    def merge_state(self, others):
        for other in others:
            self.total, self.rows = self.total + other.total, self.rows + other.rows
            self.largest += other.largest


class OfParts(Merged):
    """The same of outputs in a mapping, with a tuple of targets."""

    def update(self, outputs, targets):
        super().update(outputs["logits"], targets[0] + targets[1])


class Holder:
    """A metric of one's own that holds one of torchmetrics, and says itself what it has seen."""

    def __init__(self):
        self.inner = of_classes.MulticlassConfusionMatrix(4)

    def reset(self):
        self.inner.reset()

    def update(self, outputs, targets):
        self.inner.update(outputs, targets)

    def compute(self):
        return float(self.inner.compute().sum())

    def state_dict(self):
        return {"matrix": self.inner.confmat}

    def load_state_dict(self, state):
        self.inner.confmat = state["matrix"]
        self.inner._update_count = 1

    def merge_state(self, others):
        self.inner.confmat = self.inner.confmat + sum(other.inner.confmat for other in others)


METRICS: dict[str, Any] = {
    "accuracy": lambda: of_classes.MulticlassAccuracy(4),
    "auroc": lambda: of_classes.MulticlassAUROC(4, thresholds=None),
    "both": lambda: torchmetrics.MetricCollection([of_classes.MulticlassF1Score(4), of_classes.MulticlassRecall(4)]),
    "holder": Holder,
    "merged": Merged,
}
