"""SqueezeExcite keeps the rules of engine-core's conformance kit."""

import torch
from torch import nn

from engine_core.testing import AlgorithmConformance
from surgery_plugin import SqueezeExcite


class TestSqueezeExcite(AlgorithmConformance):
    """After a plain and a strided convolution, with a number of latent channels."""

    def make_algorithm(self) -> SqueezeExcite:
        return SqueezeExcite(min_channels=4, latent_channels=4)

    def make_model(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32, 16),
            nn.LayerNorm(16),
            nn.ReLU(),
            nn.Linear(16, 4),
        )


class TestSqueezeExciteOfAFraction(TestSqueezeExcite):
    """The latent channels as a fraction."""

    def make_algorithm(self) -> SqueezeExcite:
        return SqueezeExcite(min_channels=8, latent_channels=0.25)
