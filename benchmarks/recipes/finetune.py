"""Fine-tuning: a net that knows half of the classes of Fashion-MNIST learns the others from a few images of them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from benchmarks.recipes.nets import small_resnet
from benchmarks.studies.fashion import load

KNOWN = 5
"""Classes 0 to 4 are known before; 5 to 9 are learnt."""
PRETRAINED = Path(tempfile.gettempdir(), "engine-core-benchmarks", "resnet-of-five-classes.pt")
"""Where the pretrained weights are kept, since each run begins with them."""


class Rows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Images (n, 1, 28, 28) of the classes to learn and labels from 0 to 4, a batch at a time."""

    def __init__(self, split: str, rows: int | None) -> None:
        images, labels = load(split)
        own = (labels >= KNOWN).nonzero()[:, 0][:rows]
        self.images, self.labels = images[own], labels[own] - KNOWN

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images and labels of a batch."""
        return self.images[rows], self.labels[rows]


def make_loader(split: str, batch_size: int = 1000, rows: int | None = None) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Return batches of a split, of its first `rows` images that have a class to learn."""
    return DataLoader(Rows(split, rows), batch_size, shuffle=split == "train", collate_fn=tuple)


def pretrained_net() -> nn.Module:
    """Return the net with a new head, and in all else as two epochs on the 25,000 images of known classes left it."""
    net = small_resnet()
    new_head = nn.Linear(64, KNOWN)
    if not PRETRAINED.exists():
        _pretrain()
    net.load_state_dict(torch.load(PRETRAINED, weights_only=True))
    net[-1] = new_head
    return net


def _pretrain(epochs: int = 2, batch_size: int = 64) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = small_resnet()
    images, labels = load("train")
    own = (labels < KNOWN).nonzero()[:, 0]
    steps = [r for _ in range(epochs) for r in own[torch.randperm(len(own), generator=generator)].split(batch_size)]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, len(steps))
    for rows in steps:
        optimizer.zero_grad()
        F.cross_entropy(net(images[rows]), labels[rows]).backward()
        optimizer.step()
        decay.step()
    PRETRAINED.parent.mkdir(exist_ok=True)
    torch.save(net.state_dict(), PRETRAINED)
