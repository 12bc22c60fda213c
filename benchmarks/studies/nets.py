"""The nets of the studies, which contain what algorithms look for."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class BasicBlock(nn.Module):
    """Two convolutions with a shortcut, under the name by which residual blocks are found."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activations of the block."""
        hidden = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(hidden)) + x)


class Residual(nn.Module):
    """Two residual blocks with a max-pool between them, or the first block alone."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2)
        self.blocks = nn.ModuleList([BasicBlock(channels), BasicBlock(channels)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activations, (n, channels, height, width), halved in size by each block but the first."""
        for place, block in enumerate(self.blocks):
            x = block(self.pool(x) if place else x)
        return x


def residual_net(width: int = 32) -> nn.Module:
    """Return a net for images (n, 1, height, width) of 4x4 or larger.

    It has a strided convolution, a max-pool, two residual blocks, BatchNorm, LayerNorm, and a head Linear-ReLU-Linear.
    """
    stem = [nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    down = [nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU()]
    blocks = Residual(2 * width)
    head = [nn.LayerNorm(2 * width), nn.Linear(2 * width, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*stem, *down, blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *head)


def plain_net() -> nn.Module:
    """Return a net of 39,000 parameters, four convolutions with BatchNorm, for images (n, 1, 28, 28)."""
    sizes = [(1, 16, 2), (16, 32, 1), (32, 32, 2), (32, 64, 1)]
    layers = [
        layer
        for width, out, stride in sizes
        for layer in (nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(sizes[-1][1] * 9, 10))
