"""Metrics whose values depend on which rows they see, in which order and in which batches."""

from __future__ import annotations

from typing import Any

import torch
import torchmetrics
from torchmetrics import classification as of_classes


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


METRICS: dict[str, Any] = {
    "accuracy": lambda: of_classes.MulticlassAccuracy(4),
    "auroc": lambda: of_classes.MulticlassAUROC(4, thresholds=None),
    "both": lambda: torchmetrics.MetricCollection([of_classes.MulticlassF1Score(4), of_classes.MulticlassRecall(4)]),
    "kept": Kept,
    "holder": Holder,
    "in_order": InOrder,
}
