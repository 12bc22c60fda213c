"""Loaders whose batches have the ids of their examples, for methods that remember examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fashion import load
from torch.utils.data import DataLoader, Dataset

from engine_core.examples.digits import make_loader
from sb_plugin import WithIndex

ROWS = 20_000
"""The images of Fashion-MNIST that train."""


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


def fashion(batch_size: int = 128) -> DataLoader[Any]:
    """Return shuffled batches of training images (n, 1, 28, 28), labels (n,) and ids (n,)."""
    images, labels = load("train")
    data = Sliced(images[:ROWS], labels[:ROWS])
    return DataLoader(data, batch_size, shuffle=True, drop_last=True, collate_fn=_as_it_is)


def _as_it_is(batch: Any) -> Any:
    return batch
