"""The algorithms of this package, and their pass, keep the rules of engine-core's conformance kit."""

from engine_core_author import AlgorithmConformance, PassConformance
from optim_plugin import EMA, LAWA, SAM, SWA, GradientClipping, GradientPenalty, LayerFreezing, Lookahead, ZClip
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


class TestLAWA(AlgorithmConformance):
    """Every third batch, with a window that does not hold them all."""

    def make_algorithm(self):
        return LAWA(interval="0.3dur", window=2)


class TestLookahead(AlgorithmConformance):
    """With a k that epochs of four batches cut."""

    def make_algorithm(self):
        return Lookahead(k=3)


class TestLateSAM(AlgorithmConformance):
    """From the third batch on."""

    def make_algorithm(self):
        return SAM(start=0.25)


class TestGradientClippingByValue(AlgorithmConformance):
    """With a value that clips."""

    def make_algorithm(self):
        return GradientClipping("value", 0.01)


class TestGradientClippingAdaptively(AlgorithmConformance):
    """With a threshold that clips."""

    def make_algorithm(self):
        return GradientClipping("adaptive", 0.01)


class TestZClip(AlgorithmConformance):
    """With a threshold that most norms are above."""

    def make_algorithm(self):
        return ZClip(z_threshold=0.01, warmup=2)
