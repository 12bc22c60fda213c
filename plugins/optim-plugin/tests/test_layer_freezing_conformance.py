"""LayerFreezing keeps the rules of engine-core's conformance kit."""

from engine_core.testing import AlgorithmConformance
from optim_plugin import LayerFreezing


class TestLayerFreezing(AlgorithmConformance):
    """From the first batch on."""

    def make_algorithm(self) -> LayerFreezing:
        return LayerFreezing(start=0)


class TestLayerFreezingLate(AlgorithmConformance):
    """Half of the layers, late."""

    def make_algorithm(self) -> LayerFreezing:
        return LayerFreezing(start=0.3, level=0.5)
