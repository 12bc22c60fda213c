"""How difficult examples are, for a curriculum: by the margin of a linear model of the same data."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn import functional as F


def by_linear_model(dataset: Iterable[tuple[torch.Tensor, ...]]) -> torch.Tensor:
    """Return by how much another class beats an example's own (n,), in a ridge regression on one-hot labels.

    A small model that is trained first tells which examples are hard, as in Hacohen and Weinshall 2019, On The Power of
    Curriculum Learning in Training Deep Networks, arXiv 1904.03626; there it was one trained on other data.
    """
    inputs, labels = zip(*((example[0].flatten(), int(example[1])) for example in dataset), strict=True)
    x, own = F.pad(torch.stack(inputs).double(), (0, 1), value=1.0), F.one_hot(torch.tensor(labels)).bool()
    outputs = x @ torch.linalg.solve(x.T @ x + torch.eye(x.shape[1]), x.T @ own.double())
    return outputs.masked_fill(own, -torch.inf).amax(1) - outputs[own]
