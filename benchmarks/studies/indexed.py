"""Loaders whose batches have the ids of their examples, for methods that remember examples, and irreducible losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fashion import load
from nets import plain_net
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from engine_core.examples.digits import make_loader
from sb_plugin import WithIndex

ROWS = 20_000
"""The images of Fashion-MNIST that train; the 30,000 after them are those of the other model."""
WRONG = 0.2
"""The share of labels that are drawn anew, where labels are noisy."""


def digits(split: str, batch_size: int = 64) -> DataLoader[Any]:
    """Return batches of images (n, 1, 8, 8), labels (n,) and ids (n,), shuffled if the split is `train`."""
    return DataLoader(WithIndex(make_loader(split).dataset), batch_size, shuffle=split == "train")


@dataclass
class Sliced(Dataset[Any]):
    """Gives a whole batch by slicing: items one by one would cost as much as the net."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, rows: Sequence[int]) -> Any:
        """Return images, labels and ids of a batch."""
        ids = torch.as_tensor(rows)
        return self.images[ids], self.labels[ids], ids


def fashion(batch_size: int = 128, *, noisy: bool = False) -> DataLoader[Any]:
    """Return shuffled batches of training images (n, 1, 28, 28), labels (n,) and ids (n,)."""
    images, labels = _training(noisy=noisy)
    data = Sliced(images[:ROWS], labels[:ROWS])
    return DataLoader(data, batch_size, shuffle=True, drop_last=True, collate_fn=_as_it_is)


def irreducible(*, noisy: bool = False) -> torch.Tensor:
    """Train the same net on other images, for two epochs, and return its losses on those that train (ROWS,)."""
    images, labels = _training(noisy=noisy)
    net = plain_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.4, momentum=0.9, nesterov=True, weight_decay=5e-4)
    steps = [rows for _ in range(2) for rows in (torch.randperm(len(labels) - ROWS) + ROWS).split(128)]
    decay = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.4, len(steps), 0.05, "linear", cycle_momentum=False)
    for rows in steps:
        optimizer.zero_grad()
        F.cross_entropy(net(images[rows]), labels[rows]).backward()
        optimizer.step()
        decay.step()
    net.eval()
    with torch.no_grad():
        parts = zip(images[:ROWS].split(1000), labels[:ROWS].split(1000), strict=True)
        return torch.cat([F.cross_entropy(net(x), y, reduction="none") for x, y in parts])


def irreducible_of_noisy() -> torch.Tensor:
    """Return those of noisy labels, by a net that has trained on noisy labels too."""
    return irreducible(noisy=True)


def _training(*, noisy: bool) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = load("train")
    if noisy:
        generator = torch.Generator().manual_seed(1)
        is_wrong = torch.rand(len(labels), generator=generator) < WRONG
        labels = torch.where(is_wrong, torch.randint(10, labels.shape, generator=generator), labels)
    return images, labels


def _as_it_is(batch: Any) -> Any:
    return batch
