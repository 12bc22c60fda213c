"""The nets whose steps are timed, each with a batch: a small ResNet, an MLP and a language model over characters.

The batches are of a size for training on a CPU, with a tenth to two thirds of a second per step. The algorithm itself
takes about the same time in all, 1 to 1.5 ms: in a step of 30 ms it would be 3 to 5 hundredths.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["NETS", "Net"]


@dataclass(frozen=True)
class Net:
    """A model with its optimizer, its loss and one batch of inputs, targets and ids."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss_fn: Callable[..., torch.Tensor]
    batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]

    def moved(self, device: str) -> Net:
        """Return it on a device; one that is not the CPU gets a batch of 16 times the rows, so that it has work."""
        if device == "cpu":
            return self
        self.model.to(device)
        inputs, targets, _ = (tensor.repeat(16, *[1] * (tensor.ndim - 1)).to(device) for tensor in self.batch)
        return replace(self, batch=(inputs, targets, torch.arange(len(inputs))))


class ResidualBlock(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.short = nn.Identity() if stride == 1 and width == out else nn.Conv2d(width, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activations of the block."""
        hidden = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(hidden)) + self.short(x))


def resnet() -> Net:
    """Return a ResNet-14 of 16 to 64 channels, with 128 images of 32x32."""
    widths = [(16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)]
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    model = nn.Sequential(*stem, *(ResidualBlock(*w) for w in widths), *head)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(128, 3, 32, 32), torch.randint(0, 10, (128,))
    return Net(model, optimizer, F.cross_entropy, (images, labels, torch.arange(128)))


def mlp() -> Net:
    """Return an MLP of 784, 1024, 1024 and 10 units, with 1024 rows."""
    layers = [nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    rows, labels = torch.randn(1024, 784), torch.randint(0, 10, (1024,))
    return Net(model, optimizer, F.cross_entropy, (rows, labels, torch.arange(1024)))


class TransformerBlock(nn.Module):
    """Causal attention and an MLP, each after a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activations (n, t, width) of activations (n, t, width)."""
        n, t, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3 * self.heads, -1).transpose(1, 2).chunk(3, dim=1)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(n, t, width))
        hidden: torch.Tensor = x + self.mlp(self.norm2(x))
        return hidden


class CharLM(nn.Module):
    """A transformer of four blocks over characters."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(torch.randn(length, width) / 50)
        self.blocks = nn.Sequential(*(TransformerBlock(width, 4) for _ in range(4)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, t, vocabulary) of tokens (n, t)."""
        logits: torch.Tensor = self.head(self.blocks(self.embed(tokens) + self.place))
        return logits


def loss_of_rows(logits: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Return the loss of each row of tokens (n,), or their mean."""
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)
    return losses if reduction == "mean" else losses.view(targets.shape).mean(1)


def char_lm() -> Net:
    """Return a language model with 128 rows of 64 characters of the standard library's source."""
    n, t = 128, 64
    text = Path(argparse.__file__).read_text(encoding="utf-8")
    vocabulary = sorted(set(text))
    tokens = torch.tensor([vocabulary.index(c) for c in text[: n * (t + 1)]]).view(n, t + 1)
    model = CharLM(len(vocabulary), t, width=128)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    return Net(model, optimizer, loss_of_rows, (tokens[:, :-1].clone(), tokens[:, 1:].clone(), torch.arange(n)))


NETS: dict[str, Callable[[], Any]] = {"resnet": resnet, "mlp": mlp, "lm": char_lm}
