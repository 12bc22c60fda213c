"""labels-plugin, by hand."""

from __future__ import annotations

import torch
from sides import Case, Hand, Loop
from torch.nn import functional as F

from labels_plugin import LabelSmoothing


def dense(hand: Hand) -> Loop:
    """Make dense targets by the formula."""
    model, optimizer, batches = hand.model, hand.optimizer, hand.batches
    smoothing = 0.1

    def run() -> None:
        for inputs, targets in batches:
            optimizer.zero_grad()
            outputs = model(inputs)
            others = smoothing / outputs.shape[1]
            smoothed = torch.full_like(outputs, others).scatter_(1, targets[:, None], 1 - smoothing + others)
            loss = F.cross_entropy(outputs, smoothed)
            loss.backward()
            optimizer.step()

    return run


def in_the_loss(hand: Hand) -> Loop:
    """Let torch's cross entropy smooth, which rounds differently."""
    model, optimizer, batches = hand.model, hand.optimizer, hand.batches

    def run() -> None:
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets, label_smoothing=0.1)
            loss.backward()
            optimizer.step()

    return run


CASES = {
    "label_smoothing": Case(lambda: [LabelSmoothing(0.1)], dense),
    "label_smoothing_loss": Case(lambda: [LabelSmoothing(0.1)], in_the_loss, tolerance=0.01),
}
