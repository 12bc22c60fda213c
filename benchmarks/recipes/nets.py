"""The nets that the studies of recipes train."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class ResidualBlock(nn.Module):
    """Halve an image's sides with one convolution, and add another's result to it."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, out, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activations of the block."""
        halved = F.relu(self.norm1(self.conv1(x)))
        return halved + F.relu(self.norm2(self.conv2(halved)))


def small_resnet() -> nn.Module:
    """Return a residual net of 70,000 parameters for images (n, 1, 28, 28)."""
    stem = [nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    blocks = [ResidualBlock(16, 32), ResidualBlock(32, 64)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, 10, bias=False))
