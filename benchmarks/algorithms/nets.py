"""The two nets of the benchmark, with layers that a hand-written model can replace; steps of 10 to 50 ms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

CLASSES = 100
Layer = Callable[..., nn.Module]


class BasicBlock(nn.Module):
    """Two convolutions with a shortcut; the name is one that StochasticDepth looks for."""

    def __init__(self, width: int, out: int, stride: int, conv: Layer = nn.Conv2d) -> None:
        super().__init__()
        self.conv1 = conv(width, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = conv(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.short = nn.Identity() if stride == 1 and width == out else conv(width, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(hidden)) + self.short(x))


def resnet(conv: Layer = nn.Conv2d, pool: Layer = nn.MaxPool2d, block: Layer = BasicBlock) -> nn.Module:
    """Return a ResNet-8 for images of 32x32 whose first max-pool halves them."""
    widths = [(16, 16, 1), (16, 32, 2), (32, 32, 1)]
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), pool(2)]
    blocks = [block(*width, conv) for width in widths]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES))


class Attention(nn.Module):
    """Self-attention of 4 heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, tokens, width = x.shape
        q, k, v = self.qkv(x).view(rows, tokens, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(rows, tokens, width))


class TransformerBlock(nn.Module):
    """Attention and a feed-forward part, each after a LayerNorm."""

    def __init__(self, width: int, norm: Layer, feed: Layer) -> None:
        super().__init__()
        self.norm1, self.attention = norm(width), Attention(width)
        self.norm2, self.feed = norm(width), feed(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


def feed_forward(width: int) -> nn.Module:
    """Return the plain feed-forward part."""
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def transformer(norm: Layer = nn.LayerNorm, feed: Layer = feed_forward) -> nn.Module:
    """Return two blocks for rows of 32 tokens of 64 numbers, and a linear head on all of them."""
    blocks: list[Any] = [TransformerBlock(64, norm, feed) for _ in range(2)]
    return nn.Sequential(*blocks, norm(64), nn.Flatten(), nn.Linear(32 * 64, CLASSES))
