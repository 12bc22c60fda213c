"""The algorithms of this package, and their pass, keep the rules of engine-core's conformance kit."""

from engine_core import AlgorithmPass
from engine_core_author import AlgorithmConformance, PassConformance
from optim_plugin import EMA, SAM, SWA, GradientPenalty, LayerFreezing
from optim_plugin.passes import sort_sam_first


class TestEMA(AlgorithmConformance):
    """After each batch."""

    def make_algorithm(self) -> EMA:
        return EMA(decay=0.9)


class TestEMAPerEpoch(AlgorithmConformance):
    """After each epoch."""

    def make_algorithm(self) -> EMA:
        return EMA(decay=0.9, update_interval="1ep")


class TestEMAPerThreeBatches(AlgorithmConformance):
    """Intervals that epochs of four batches cut."""

    def make_algorithm(self) -> EMA:
        return EMA(decay=0.5, update_interval="3ba")


class TestEMAFromTheSecondEpoch(AlgorithmConformance):
    """With a half-life."""

    def make_algorithm(self) -> EMA:
        return EMA(half_life="2ba", ema_start="1ep")


class TestGradientPenalty(AlgorithmConformance):
    """On the first item of a batch."""

    def make_algorithm(self) -> GradientPenalty:
        return GradientPenalty(weight=10.0)


class TestLayerFreezing(AlgorithmConformance):
    """From the first batch on."""

    def make_algorithm(self) -> LayerFreezing:
        return LayerFreezing(start=0)


class TestLayerFreezingLate(AlgorithmConformance):
    """Half of the layers, late."""

    def make_algorithm(self) -> LayerFreezing:
        return LayerFreezing(start=0.3, level=0.5)


class TestSAM(AlgorithmConformance):
    """In each step."""

    def make_algorithm(self) -> SAM:
        return SAM()


class TestSAMEverySecondStep(AlgorithmConformance):
    """In every second step, further up."""

    def make_algorithm(self) -> SAM:
        return SAM(rho=0.5, interval=2)


class TestSortSAMFirst(PassConformance):
    """The pass that puts it first."""

    def make_pass(self) -> AlgorithmPass:
        return sort_sam_first


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
