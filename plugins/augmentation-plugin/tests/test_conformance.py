"""The algorithms of this package keep the rules of engine-core's conformance kit."""

import torch
from torch import nn

from augmentation_plugin import (
    AlternatingFlip,
    ColOut,
    CutMix,
    CutOut,
    MixUp,
    ProgressiveResizing,
    RandAugment,
    RandomShift,
    TestTimeAugmentation,
)
from engine_core_author import AlgorithmConformance


class TestCutMix(AlgorithmConformance):
    """Its targets are mixed."""

    on_ranks = "microbatches"

    def make_algorithm(self):
        return CutMix()

    def make_others(self):
        return [*super().make_others(), MixUp(interpolate_loss=True)]


class TestMixUpInterpolatingTheLoss(AlgorithmConformance):
    """Its losses are mixed."""

    on_ranks = "microbatches"

    def make_algorithm(self):
        return MixUp(alpha=0.5, interpolate_loss=True)

    def make_others(self):
        return [*super().make_others(), CutMix()]


class TestCutOut(AlgorithmConformance):
    """With the defaults."""

    on_ranks = "law"

    def make_algorithm(self):
        return CutOut()


class TestAlternatingFlip(AlgorithmConformance):
    """With batches that have ids."""

    def make_algorithm(self):
        return AlternatingFlip()

    def make_batches(self):
        ids = torch.arange(64).split(8)
        return [(*batch, own) for batch, own in zip(super().make_batches(), ids, strict=False)]


class TestRandomShift(AlgorithmConformance):
    """By reflection."""

    on_ranks = "law"

    def make_algorithm(self):
        return RandomShift(3, padding="reflect")


class TestRandAugment(AlgorithmConformance):
    """With the defaults."""

    on_ranks = "law"

    def make_algorithm(self):
        return RandAugment()


class TestTestTimeAugmentation(AlgorithmConformance):
    """With the defaults."""

    def make_algorithm(self):
        return TestTimeAugmentation()


class TestProgressiveResizingByCrops(AlgorithmConformance):
    """With windows that are drawn."""

    def make_algorithm(self):
        return ProgressiveResizing(
            mode="crop", initial_scale=0.4, finetune_fraction=0.1, delay_fraction=0.2, size_increment=1
        )

    def make_model(self):
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16, 4),
        )


class TestColOut(TestProgressiveResizingByCrops):
    """With many lines left out."""

    def make_algorithm(self):
        return ColOut(p_row=0.4, p_col=0.3)
