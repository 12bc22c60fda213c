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

    def __init__(self, more_on_rank=None):
        self.more_on_rank = more_on_rank

    def __iter__(self):
        yield from DATA
        if self.more_on_rank == rank_here():
            yield DATA[0]


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


def ignoring(size):
    """Batches of which the second has no target that counts, nor has the second half of the third."""
    targets = TARGETS.clone()
    targets[size : 2 * size] = -100
    targets[2 * size + size // 2 : 3 * size] = -100
    return [(INPUTS[i : i + size], targets[i : i + size]) for i in range(0, 53, size)]


def a_list():
    return [(INPUTS[a:b], TARGETS[a:b]) for a, b in [(0, 1), (1, 9), (9, 12), (12, 13)]]


class Words(OwnLoss):
    """A model whose outputs hold a word."""

    def eval_forward(self, batch):
        return {"logits": self.net(batch[0]), "word": "a word"}, batch[1]


class Ragged(OwnLoss):
    """A model whose outputs have another shape on another rank."""

    def eval_forward(self, batch):
        return {"logits": nn.functional.pad(self.net(batch[0]), (0, rank_here()))}, batch[1]


class Detecting(OwnLoss):
    """A model that finds another number of boxes in each example."""

    def loss(self, outputs, batch):
        return super().loss(self(batch), batch)

    def eval_forward(self, batch):
        inputs, targets = batch
        found = [{"boxes": row[: int(target)], "word": str(int(target))} for row, target in zip(*batch, strict=True)]
        return found, [{"boxes": row[:1]} for row in inputs[: len(targets)]]


class InOrder:
    """A metric that depends on the order of the rows, and on how they are split into batches."""

    def reset(self):
        self.total, self.rows, self.batches = 0.0, 0, 0

    def update(self, outputs, targets):
        self.batches += 1
        for row, target in zip(outputs, targets, strict=True):
            self.rows += 1
            self.total += self.rows / 1000 * float(row[0]) + self.batches / 1000 * float(target)

    def compute(self):
        return {"total": self.total, "rows": self.rows, "batches": self.batches}


class OfParts(InOrder):
    """The same of outputs in a mapping, with a tuple of targets."""

    def update(self, outputs, targets):
        super().update(outputs["logits"], targets[0] + targets[1])


class Holder(InOrder):
    """A metric of one's own that holds one of torchmetrics."""

    def __init__(self):
        self.inner = of_classes.MulticlassConfusionMatrix(4)

    def reset(self):
        self.inner.reset()

    def update(self, outputs, targets):
        self.inner.update(outputs, targets)

    def compute(self):
        return float(self.inner.compute().sum())


class Kept(torchmetrics.Metric):
    """A metric of torchmetrics with a list that is not reduced, which its own way of adding up can't always bring."""

    def __init__(self):
        super().__init__()
        self.add_state("kept", default=[], dist_reduce_fx=None)

    def update(self, outputs, targets):
        self.kept.append(outputs[:, 0] * targets)

    def compute(self):
        whole = torch.cat(self.kept).double()
        return (whole * torch.arange(len(whole))).sum() / 1000


class Detected(torchmetrics.Metric):
    """A metric of torchmetrics for boxes, with a sum and with lists, as those of detection have."""

    def __init__(self):
        super().__init__()
        self.add_state("images", default=torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("found", default=[], dist_reduce_fx=None)

    def update(self, outputs, targets):
        for found, wanted in zip(outputs, targets, strict=True):
            self.images += 1
            self.found.append((found["boxes"].sum() - wanted["boxes"].sum()) * int(found["word"]))

    def compute(self):
        weights = torch.arange(len(self.found)).double()
        return {"images": self.images, "in order": (torch.stack(self.found).double() * weights).sum() / 1000}


METRICS: dict[str, Any] = {
    "accuracy": lambda: of_classes.MulticlassAccuracy(4),
    "auroc": lambda: of_classes.MulticlassAUROC(4, thresholds=None),
    "both": lambda: torchmetrics.MetricCollection([of_classes.MulticlassF1Score(4), of_classes.MulticlassRecall(4)]),
    "kept": Kept,
    "holder": Holder,
    "in_order": InOrder,
}
