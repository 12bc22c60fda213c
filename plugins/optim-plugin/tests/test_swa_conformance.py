"""SWA keeps the rules of engine-core's conformance kit."""

from engine_core.testing import AlgorithmConformance
from optim_plugin import SWA


class TestSWA(AlgorithmConformance):
    """From the first epoch on."""

    def make_algorithm(self) -> SWA:
        return SWA(start=0)


class TestSWAPerBatch(AlgorithmConformance):
    """After each second batch of the later training."""

    def make_algorithm(self) -> SWA:
        return SWA(start=0.3, update_interval="2ba")


class TestSWAWithItsLearningRate(AlgorithmConformance):
    """On the way to it from the third batch on."""

    def make_algorithm(self) -> SWA:
        return SWA(start=0.25, update_interval="1ba", swa_lr=0.01, anneal="4ba")
