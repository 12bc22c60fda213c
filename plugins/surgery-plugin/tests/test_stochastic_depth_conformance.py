"""StochasticDepth keeps the rules of engine-core's conformance kit."""

import torch
from torch import nn

from engine_core.testing import AlgorithmConformance
from surgery_plugin import StochasticDepth


class BasicBlock(nn.Module):
    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 3, padding=1)
        self.norm = nn.BatchNorm2d(out)
        self.project = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.project(x) + self.norm(self.conv(x)))


class TestStochasticDepth(AlgorithmConformance):
    """One draw for each sample."""

    on_ranks = "law"

    def make_algorithm(self) -> StochasticDepth:
        return StochasticDepth(drop_rate=0.5)

    def make_model(self) -> nn.Module:
        return nn.Sequential(BasicBlock(1, 4), BasicBlock(4, 4), BasicBlock(4, 4), nn.Flatten(), nn.Linear(256, 4))


class TestStochasticDepthPerBatch(TestStochasticDepth):
    """One for all."""

    on_ranks = "equal"

    def make_algorithm(self) -> StochasticDepth:
        return StochasticDepth(drop_rate=0.5, drop_distribution="uniform", drop_per="batch")


class TestStochasticDepthWarmingUp(TestStochasticDepth):
    """Over the first epoch."""

    def make_algorithm(self) -> StochasticDepth:
        return StochasticDepth(drop_rate=0.5, drop_warmup="1ep")
