"""Loaders whose batches have the ids of their examples, for methods that remember examples."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from engine_core.examples.digits import make_loader
from sb_plugin import WithIndex


def digits(split: str, batch_size: int = 64) -> DataLoader[Any]:
    """Return batches of images (n, 1, 8, 8), labels (n,) and ids (n,), shuffled if the split is `train`."""
    return DataLoader(WithIndex(make_loader(split).dataset), batch_size, shuffle=split == "train")
