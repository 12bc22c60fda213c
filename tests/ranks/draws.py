"""Draws for each row: CutOut's holes, blocks that stochastic depth drops by sample, and dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Trainer
from engine_core.ranks import Ranks
from engine_core.registry import Registry

ROWS, RATE = 800, 0.4


class Plus(nn.Module):
    """A block that adds 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Watched(nn.Module):
    """Notes for each row how much of it is a hole, whether its block was dropped, and what dropout left of a 1."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.weight = Plus(), nn.Parameter(torch.zeros(2))
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        holes = (x == 0).float().mean((1, 2, 3))
        dropped = (self.block(x) == x).float().mean((1, 2, 3))
        left = F.dropout(torch.ones(x.shape[0]), RATE)
        self.seen.append(torch.stack([holes, dropped, left], 1))
        return x.mean((1, 2, 3))[:, None] * self.weight


def draws(ranks: Ranks) -> dict[str, Any]:
    """Return the mean of each over all rows, and on how many ranks the first batches are alike."""
    arguments: dict[str, dict[str, Any]] = {
        "cutout": {"length": 0.5},
        "stochastic_depth": {"targets": [Plus], "drop_rate": RATE, "drop_distribution": "uniform"},
    }
    model, y = Watched(), torch.zeros(40, dtype=torch.long)
    batches = [(torch.ones(40, 1, 8, 8), y)] * (ROWS // 40)
    algorithms = [Registry.scan().load("algorithms", name)(**given) for name, given in arguments.items()]
    with Trainer(
        model,
        batches,
        max_duration="1ep",
        loss_fn=F.cross_entropy,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        algorithms=algorithms,
        seed=5,
        device="cpu",
        progress_bar=False,
    ) as trainer:
        trainer.fit()
    seen, _ = ranks.gather(torch.cat(model.seen))
    firsts = ranks.each([column.tolist() for column in torch.cat(model.seen)[:20].T])
    apart = [len({str(column) for column in columns}) for columns in zip(*firsts, strict=True)]
    return {"rows": seen.shape[0], "means": seen.mean(0).tolist(), "apart": apart}
