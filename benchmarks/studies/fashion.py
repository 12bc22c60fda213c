"""Fashion-MNIST, from the IDX files of Debian's `dataset-fashion-mnist`; FASHION_MNIST names another folder."""

from __future__ import annotations

import functools
import gzip
import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

FOLDER = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
VALIDATION = 10_000


def read_idx(path: Path) -> torch.Tensor:
    """Return the bytes of a gzipped IDX file in their shape.

    Raises:
        ValueError: for a file that is not IDX, holds anything but bytes, or has not the length that it declares.
    """
    content = gzip.decompress(path.read_bytes())
    if content[:3] != b"\0\0\x08" or len(content) < (begin := 4 + 4 * content[3]):
        raise ValueError(f"{path} is not an IDX file of bytes: it begins with {content[:4]!r}")
    shape = struct.unpack(f">{content[3]}I", content[4:begin])
    if len(content) != begin + math.prod(shape):
        raise ValueError(f"{path} has {len(content) - begin} bytes of data, not the {math.prod(shape)} of {shape}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=begin).reshape(shape)


@functools.cache
def load(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (n, 1, 28, 28), normalised by the training images, and labels (n,).

    `val` is 10,000 images of the training file, `train` the others, and `test` the test file.
    """
    images, labels = _read("train")
    rows = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, val = rows[VALIDATION:], rows[:VALIDATION]
    mean, deviation = images[train].mean(), images[train].std()
    if split == "test":
        images, labels = _read("t10k")
    chosen = {"train": train, "val": val, "test": slice(None)}[split]
    return (images[chosen] - mean) / deviation, labels[chosen]


def _read(part: str) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = (FOLDER / f"{part}-{name}-ubyte.gz" for name in ("images-idx3", "labels-idx1"))
    if not images.exists():
        raise FileNotFoundError(f"{images} is not there: `apt-get install dataset-fashion-mnist`, or set FASHION_MNIST")
    return read_idx(images).unsqueeze(1).float() / 255, read_idx(labels).long()


@dataclass
class Batches:
    """Slices tensors into `(images, labels, ids)`, shuffled for training: a DataLoader would cost as much as the net.

    Training leaves out the last rows of an epoch, too few for a batch, so that all steps have one size.
    """

    images: torch.Tensor
    labels: torch.Tensor
    size: int
    shuffles: bool

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(torch.initial_seed())  # the run's

    def __len__(self) -> int:
        return len(self.labels) // self.size

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        count = len(self.labels)
        order = torch.randperm(count, generator=self.generator) if self.shuffles else torch.arange(count)
        for rows in order[: len(self) * self.size].split(self.size):
            yield self.images[rows], self.labels[rows], rows


def make_loader(split: str, batch_size: int = 1000, rows: int | None = None) -> Batches:
    """Return batches of a split, of its first `rows` alone."""
    images, labels = load(split)
    return Batches(images[:rows], labels[:rows], batch_size, split == "train")
