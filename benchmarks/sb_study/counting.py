"""Count compute: the rows that go through a model, with and without gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

STEP = 3
"""What a training step costs in forwards: one forward, and a backward that costs two."""


@dataclass
class Counter:
    """Rows trained on, and rows that only went forward; a row scaled to half height and width counts a quarter."""

    trained: float = 0.0
    scored: float = 0.0

    @property
    def compute(self) -> float:
        """In forwards of one row."""
        return STEP * self.trained + self.scored


@contextmanager
def counting(model: nn.Module, shape: tuple[int, ...]) -> Iterator[Counter]:
    """Count what goes through `model` within the block, in rows of `shape`."""
    counter, size = Counter(), math.prod(shape)

    def count(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        rows = inputs[0].numel() / size
        if torch.is_grad_enabled():
            counter.trained += rows
        else:
            counter.scored += rows

    handle = model.register_forward_pre_hook(count)
    try:
        yield counter
    finally:
        handle.remove()
