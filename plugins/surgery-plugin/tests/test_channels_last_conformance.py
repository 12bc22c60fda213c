"""ChannelsLast keeps the rules of engine-core's conformance kit."""

from engine_core.testing import AlgorithmConformance
from surgery_plugin import ChannelsLast


class TestChannelsLast(AlgorithmConformance):
    """On the kit's own net."""

    def make_algorithm(self) -> ChannelsLast:
        return ChannelsLast()
