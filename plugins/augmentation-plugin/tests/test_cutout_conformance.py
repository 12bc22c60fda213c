"""CutOut keeps the rules of engine-core's conformance kit."""

from augmentation_plugin import CutOut
from engine_core.testing import AlgorithmConformance


class TestCutOut(AlgorithmConformance):
    """With the defaults."""

    on_ranks = "law"

    def make_algorithm(self) -> CutOut:
        return CutOut()


class TestCutOutWithSmallHoles(TestCutOut):
    """With several small holes."""

    def make_algorithm(self) -> CutOut:
        return CutOut(num_holes=3, length=0.2)
