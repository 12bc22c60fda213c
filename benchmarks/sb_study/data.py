"""The data: Fashion-MNIST from IDX files and scikit-learn's digits, split, and cut into batches."""

from __future__ import annotations

import functools
import gzip
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
VALIDATION = 10_000
FOLDS = 5
GZIP, UBYTE = b"\x1f\x8b", 8


class Split(NamedTuple):
    """Images (n, 1, height, width), normalised, and labels (n,), for training and for validation."""

    images: torch.Tensor
    labels: torch.Tensor
    val_images: torch.Tensor
    val_labels: torch.Tensor


def read_idx(path: Path) -> torch.Tensor:
    """Return the bytes of an IDX file, plain or gzipped, in their shape.

    Raises:
        ValueError: for a file that is not IDX, holds anything but bytes, or does not have the length it declares.
    """
    content = path.read_bytes()
    if content[:2] == GZIP:
        content = gzip.decompress(content)
    if content[:2] != b"\0\0" or len(content) < 4 or content[2] != UBYTE:
        raise ValueError(f"{path} is not an IDX file of bytes: it begins with {content[:4]!r}, not with 00 00 08")
    begin = 4 + 4 * content[3]
    if len(content) < begin:
        raise ValueError(f"{path} ends within its header, after {len(content)} of {begin} bytes")
    shape = struct.unpack(f">{content[3]}I", content[4:begin])
    if len(content) != begin + math.prod(shape):
        raise ValueError(f"{path} has {len(content) - begin} bytes of data, not the {math.prod(shape)} of {shape}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=begin).reshape(shape)


def find_idx(folder: Path, name: str) -> Path:
    """Return the path of an IDX file, gzipped or not."""
    for path in (folder / f"{name}.gz", folder / name):
        if path.exists():
            return path
    raise FileNotFoundError(
        f"{folder} has no {name}.gz: run `apt-get install dataset-fashion-mnist` on Debian, "
        "or name the folder with --fashion-mnist"
    )


@functools.cache
def load_fashion(folder: Path = DEBIAN, *, tested: bool = False) -> Split:
    """Return 10,000 images to validate on and the other 50,000 of the training file, in the same order for all runs.

    Args:
        tested: validate on the test file, to confirm the rates and methods that were chosen on the validation set.
    """
    images, labels = _read(folder, "train")
    rows = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, validation = rows[VALIDATION:], rows[:VALIDATION]
    split = _split(images, labels, train, validation)
    if not tested:
        return split
    test_images, test_labels = _read(folder, "t10k")
    test_images = (test_images - images[train].mean()) / images[train].std()
    return split._replace(val_images=test_images, val_labels=test_labels)


def _read(folder: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    images = read_idx(find_idx(folder, f"{part}-images-idx3-ubyte")).unsqueeze(1).float() / 255
    return images, read_idx(find_idx(folder, f"{part}-labels-idx1-ubyte")).long()


@functools.cache
def load_digits(fold: int) -> Split:
    """Return four fifths of the digits to train on, and the numbered fold to validate on."""
    from sklearn import datasets  # noqa: PLC0415  takes seconds, for this one dataset

    digits: Any = datasets.load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(digits.target)
    rows = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    folds = rows.tensor_split(FOLDS)
    return _split(images, labels, torch.cat([*folds[:fold], *folds[fold + 1 :]]), folds[fold])


def _split(images: torch.Tensor, labels: torch.Tensor, train: torch.Tensor, validation: torch.Tensor) -> Split:
    images = (images - images[train].mean()) / images[train].std()
    return Split(images[train], labels[train], images[validation], labels[validation])


def with_noise(split: Split, share: float, seed: int) -> Split:
    """Return the split with a share of the training labels replaced by ones drawn from all ten."""
    generator = torch.Generator().manual_seed(1000 + seed)
    labels = split.labels.clone()
    wrong = torch.randperm(len(labels), generator=generator)[: round(share * len(labels))]
    labels[wrong] = torch.randint(10, wrong.shape, generator=generator)
    return split._replace(labels=labels)


def first_rows(split: Split, count: int) -> Split:
    """Return the split with only the first `count` training rows."""
    return split._replace(images=split.images[:count], labels=split.labels[:count])


@dataclass
class Batches:
    """Shuffles and slices tensors into `(images, labels, ids)`: a DataLoader would cost as much as training.

    The last rows of an epoch, too few for a batch, are left out, so that all steps have one size.
    """

    images: torch.Tensor
    labels: torch.Tensor
    size: int
    generator: torch.Generator

    def __len__(self) -> int:
        return len(self.labels) // self.size

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        order = torch.randperm(len(self.labels), generator=self.generator)
        for i in range(len(self)):
            rows = order[i * self.size : (i + 1) * self.size]
            yield self.images[rows], self.labels[rows], rows
