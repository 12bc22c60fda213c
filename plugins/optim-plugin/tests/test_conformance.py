"""The algorithms of this package, and their pass, keep the rules of engine-core's conformance kit."""

from engine_core_author import AlgorithmConformance, PassConformance
from optim_plugin import EMA, SAM, SWA, GradientPenalty, LayerFreezing
from optim_plugin.passes import sort_sam_first


class TestEMA(AlgorithmConformance):
    """After each batch."""

    def make_algorithm(self):
        return EMA(decay=0.9)


class TestEMAFromTheSecondEpoch(AlgorithmConformance):
    """With a half-life, and intervals that epochs of four batches cut."""

    def make_algorithm(self):
        return EMA(half_life="6ba", update_interval="3ba", ema_start="1ep")


class TestGradientPenalty(AlgorithmConformance):
    """On the first item of a batch."""

    def make_algorithm(self):
        return GradientPenalty(weight=10.0)


class TestLayerFreezing(AlgorithmConformance):
    """From the first batch on."""

    def make_algorithm(self):
        return LayerFreezing(start=0)


class TestSAM(AlgorithmConformance):
    """In each step."""

    def make_algorithm(self):
        return SAM()


class TestSortSAMFirst(PassConformance):
    """The pass that puts it first."""

    def make_pass(self):
        return sort_sam_first


class TestSWA(AlgorithmConformance):
    """From the first epoch on."""

    def make_algorithm(self):
        return SWA(start=0)


class TestSWAWithItsLearningRate(AlgorithmConformance):
    """On the way to it from the third batch on."""

    def make_algorithm(self):
        return SWA(start=0.25, update_interval="1ba", swa_lr=0.01, anneal="4ba")
