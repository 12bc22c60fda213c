"""MixUp keeps the rules of engine-core's conformance kit, in both its forms."""

from collections.abc import Sequence

from augmentation_plugin import CutMix, MixUp
from engine_core import Algorithm
from engine_core.testing import AlgorithmConformance


class TestMixUp(AlgorithmConformance):
    """Its targets are mixed."""

    on_ranks = "microbatches"

    def make_algorithm(self) -> MixUp:
        return MixUp(alpha=0.5)

    def make_others(self) -> Sequence[Algorithm]:
        return [*super().make_others(), CutMix(interpolate_loss=True)]


class TestMixUpInterpolatingTheLoss(TestMixUp):
    """Its losses are mixed."""

    def make_algorithm(self) -> MixUp:
        return MixUp(alpha=0.5, interpolate_loss=True)
