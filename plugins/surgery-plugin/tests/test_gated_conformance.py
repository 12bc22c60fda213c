"""GatedLinearUnits keeps the rules of engine-core's conformance kit."""

import torch
from torch import nn

from engine_core.testing import AlgorithmConformance
from surgery_plugin import GatedLinearUnits


class TestGatedLinearUnits(AlgorithmConformance):
    """On a Sequential."""

    def make_algorithm(self) -> GatedLinearUnits:
        return GatedLinearUnits()

    def make_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.Flatten(),
            nn.Linear(256, 16),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(16, 4),
        )


class Rows(nn.Module):
    """An encoder over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x.squeeze(1)).mean(1))


class TestGatedLinearUnitsOfAnEncoder(TestGatedLinearUnits):
    """On a transformer, with another activation."""

    def make_algorithm(self) -> GatedLinearUnits:
        return GatedLinearUnits(activation="silu")

    def make_model(self) -> nn.Module:
        return Rows()
