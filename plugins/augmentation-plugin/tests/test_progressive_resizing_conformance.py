"""ProgressiveResizing keeps the rules of engine-core's conformance kit, with a net for images of any size."""

import torch
from torch import nn

from augmentation_plugin import ProgressiveResizing
from engine_core.testing import AlgorithmConformance


class TestProgressiveResizing(AlgorithmConformance):
    """With the defaults."""

    def make_algorithm(self) -> ProgressiveResizing:
        return ProgressiveResizing()

    def make_model(self) -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16, 4),
        )


class TestProgressiveResizingByCrops(TestProgressiveResizing):
    """With windows that are drawn."""

    def make_algorithm(self) -> ProgressiveResizing:
        return ProgressiveResizing(
            mode="crop", initial_scale=0.4, finetune_fraction=0.1, delay_fraction=0.2, size_increment=1
        )
