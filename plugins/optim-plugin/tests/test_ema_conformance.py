"""EMA keeps the rules of engine-core's conformance kit."""

from engine_core.testing import AlgorithmConformance
from optim_plugin import EMA


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
