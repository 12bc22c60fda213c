"""The source of Python's standard library as text, and a small transformer of its bytes."""

from __future__ import annotations

import functools
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

BYTES = 128
"""Text is ASCII here: other bytes are 1."""
LENGTH = 256
LEFT_OUT = frozenset({"site-packages", "test", "tests", "idlelib", "__pycache__"})


@functools.cache
def load(split: str) -> torch.Tensor:
    """Return the bytes of whole files in a random order: `val` and `test` a tenth of the files each, or `train`."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for path in folder.rglob("*.py") if LEFT_OUT.isdisjoint(path.relative_to(folder).parts))
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0)).tolist()
    texts = [files[place].read_bytes() for place in order]
    tenth = len(texts) // 10
    chosen = {"val": texts[:tenth], "test": texts[tenth : 2 * tenth], "train": texts[2 * tenth :]}[split]
    joined = torch.frombuffer(bytearray(b"\0".join(chosen)), dtype=torch.uint8).long()
    return torch.where(joined < BYTES, joined, 1)


@dataclass
class Windows:
    """Random windows of a text, each epoch others, as `(inputs, targets)` of shape (size, LENGTH) each."""

    text: torch.Tensor
    count: int
    size: int

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(torch.initial_seed())  # the run's

    def __len__(self) -> int:
        return self.count // self.size

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        starts = torch.randint(len(self.text) - LENGTH, (len(self), self.size), generator=self.generator)
        for places in starts.unsqueeze(2) + torch.arange(LENGTH + 1):
            yield self.text[places[:, :-1]], self.text[places[:, 1:]]


def make_loader(split: str, batch_size: int = 32, windows: int = 400) -> object:
    """Return batches of a split: for training, random windows; else evenly spaced ones, always the same."""
    text = load(split)
    if split == "train":
        return Windows(text, windows, batch_size)
    starts = torch.linspace(0, len(text) - LENGTH - 1, windows).long()
    rows = text[starts.unsqueeze(1) + torch.arange(LENGTH + 1)]
    return [(each[:, :-1].contiguous(), each[:, 1:].contiguous()) for each in rows.split(batch_size)]


def count_tokens(batch: tuple[torch.Tensor, torch.Tensor]) -> int:
    """Return how many tokens a batch has."""
    return batch[0].numel()


def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Return the cross entropy of logits (n, length, BYTES), in nats for each byte; of each row for `none`."""
    losses = F.cross_entropy(outputs.transpose(1, 2), targets, reduction="none").mean(1)
    return losses if reduction == "none" else losses.mean()


class Attention(nn.Module):
    """Causal attention with rotary positions (Su et al. 2021, arXiv 2104.09864)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        angles = torch.arange(LENGTH).unsqueeze(1) * 100.0 ** -torch.linspace(0, 1, width // heads // 2)
        self.register_buffer("angles", angles, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what each position takes from itself and those before it, of shape (n, length, width)."""
        queries, keys, values = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(self.turned(queries), self.turned(keys), values, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        """Return pairs of channels turned by the angles of their positions."""
        angles = self.angles[: x.shape[2]]
        (a, b), cos, sin = x.chunk(2, -1), angles.cos(), angles.sin()
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Block(nn.Module):
    """A block of a transformer, which normalises first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activations of the block, of shape (n, length, width)."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ByteTransformer(nn.Module):
    """A causal transformer of bytes; 216,000 parameters as it is."""

    def __init__(self, width: int = 64, layers: int = 4, heads: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(BYTES, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, BYTES, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                nn.init.normal_(
                    weight, std=0.02 if name.startswith(("embed", "head")) else 0.5 * weight.shape[1] ** -0.5
                )
            if name.endswith(("out.weight", "mlp.2.weight")):  # what is added to the residual stream
                weight.data *= (2 * layers) ** -0.5

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits (n, length, BYTES) of tokens (n, length)."""
        logits: torch.Tensor = self.head(self.norm(self.blocks(self.embed(tokens))))
        return logits
