"""BlurPool keeps the rules of engine-core's conformance kit."""

import torch
from torch import nn

from engine_core.testing import AlgorithmConformance
from surgery_plugin import BlurPool


class TestBlurPool(AlgorithmConformance):
    """With a strided convolution and a max-pool."""

    def make_algorithm(self) -> BlurPool:
        return BlurPool(min_channels=4)

    def make_model(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32, 16),
            nn.LayerNorm(16),
            nn.ReLU(),
            nn.Linear(16, 4),
        )


class TestBlurPoolOfPoolsAlone(TestBlurPool):
    """Convolutions are left as they are."""

    def make_algorithm(self) -> BlurPool:
        return BlurPool(replace_convs=False)
