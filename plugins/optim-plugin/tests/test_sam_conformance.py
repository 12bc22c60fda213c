"""SAM and its pass keep the rules of engine-core's conformance kit."""

from engine_core import AlgorithmPass
from engine_core.testing import AlgorithmConformance, PassConformance
from optim_plugin import SAM
from optim_plugin.passes import sort_sam_first


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
