"""Model, data and metric of the example: handwritten digits of 8x8 pixels, which come with scikit-learn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ..callback import Callback
from ..errors import EngineError
from ..logger import Logger
from ..state import State

try:
    from sklearn.datasets import load_digits
except ModuleNotFoundError as missing:
    raise EngineError(
        "the digits example needs scikit-learn for its data; install it with: pip install 'engine-core[examples]'"
    ) from missing

__all__ = ["Accuracy", "DigitsNet", "OneThread", "make_loader"]


class DigitsNet(nn.Module):
    """A small convolutional net for images (n, 1, 8, 8) that returns logits (n, 10)."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, channels, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, kernel_size=3, padding=1),
            nn.BatchNorm2d(2 * channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * channels, 2 * channels, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * channels, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of images."""
        logits: torch.Tensor = self.layers(images)
        return logits


def make_loader(split: str, batch_size: int = 64) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Return batches of images (n, 1, 8, 8), 0 to 1, and labels (n,): `train`, or every fifth digit, `test`."""
    if split not in ("train", "test"):
        raise ValueError(f"split is 'train' or 'test', not {split!r}")
    digits: Any = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    rows = (torch.arange(len(labels)) % 5 == 4) == (split == "test")
    return DataLoader(TensorDataset(images[rows], labels[rows]), batch_size, shuffle=split == "train")


class OneThread(Callback):
    """Trains on one thread: with a net this small, more would mostly wait for each other on a busy machine."""

    def __init__(self) -> None:
        self._before = torch.get_num_threads()

    def fit_start(self, state: State, logger: Logger) -> None:
        """Use one thread."""
        self._before = torch.get_num_threads()
        torch.set_num_threads(1)

    def close(self, state: State, logger: Logger) -> None:
        """Restore the number of threads."""
        torch.set_num_threads(self._before)


class Accuracy:
    """The fraction of right answers."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start over."""
        self.right = self.seen = 0

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Count a batch of logits (n, classes) and labels (n,)."""
        self.right += int((outputs.argmax(dim=1) == targets).sum())
        self.seen += len(targets)

    def compute(self) -> float:
        """Return the fraction."""
        return self.right / self.seen

    def merge_state(self, others: Iterable[Accuracy]) -> None:
        """Count what other ranks have seen, too."""
        for other in others:
            self.right, self.seen = self.right + other.right, self.seen + other.seen
