"""GradientPenalty keeps the rules of engine-core's conformance kit."""

from engine_core.testing import AlgorithmConformance
from optim_plugin import GradientPenalty


class TestGradientPenalty(AlgorithmConformance):
    """On the first item of a batch."""

    def make_algorithm(self) -> GradientPenalty:
        return GradientPenalty(weight=10.0)
