"""FusedLayerNorm and its pass keep the rules of engine-core's conformance kit."""

from engine_core import AlgorithmPass
from engine_core.testing import AlgorithmConformance, PassConformance
from surgery_plugin import FusedLayerNorm
from surgery_plugin.passes import sort_fused_layernorm_last


class TestFusedLayerNorm(AlgorithmConformance):
    """On the kit's net, which has an nn.LayerNorm."""

    def make_algorithm(self) -> FusedLayerNorm:
        return FusedLayerNorm()


class TestSortFusedLayernormLast(PassConformance):
    """The pass that puts it last."""

    def make_pass(self) -> AlgorithmPass:
        return sort_fused_layernorm_last
