"""CutMix keeps the rules of engine-core's conformance kit, in both its forms."""

from collections.abc import Sequence

from augmentation_plugin import CutMix, MixUp
from engine_core import Algorithm
from engine_core.testing import AlgorithmConformance


class TestCutMix(AlgorithmConformance):
    """Its targets are mixed."""

    on_ranks = "microbatches"

    def make_algorithm(self) -> CutMix:
        return CutMix()

    def make_others(self) -> Sequence[Algorithm]:
        return [*super().make_others(), MixUp(interpolate_loss=True)]


class TestCutMixInterpolatingTheLoss(TestCutMix):
    """Its losses are mixed."""

    def make_algorithm(self) -> CutMix:
        return CutMix(interpolate_loss=True)
