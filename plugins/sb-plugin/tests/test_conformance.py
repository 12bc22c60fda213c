"""Selective Backprop keeps the rules of engine-core's conformance kit, and the audit finds nothing in it."""

import pytest
import torch
from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, Event
from engine_core_author import AlgorithmConformance, PassConformance
from sb_plugin import InfoBatch, SelectiveBackprop
from sb_plugin.passes import sort_selective_backprop_first

pytestmark = pytest.mark.filterwarnings("ignore:selective_backprop. with scale_factor=0.5:UserWarning")


class InvertOddBatches(Algorithm):
    """Changes the inputs at the same event, in a way that changes the ranks of the losses."""

    metadata = AlgorithmMetadata(events=("after_dataloader",), tags=("augmentation",), writes=("batch",))

    def match(self, event, state):
        return event is Event.AFTER_DATALOADER and state.timestamp.batch % 2 == 1

    def apply(self, event, state, logger):
        state.batch_set_item(0, -state.batch_get_item(0))


class TestSelectiveBackprop(AlgorithmConformance):
    """From the first step on, at full size."""

    def make_algorithm(self):
        return SelectiveBackprop(start=0, end=1, keep=0.5, scale_factor=1, interrupt=0)

    def make_others(self):
        return [InvertOddBatches(), *super().make_others()]


class TestSelectiveBackpropAtHalfSize(TestSelectiveBackprop):
    """Within an interval, with ordinary steps between."""

    def make_algorithm(self):
        return SelectiveBackprop(start=0.2, end=0.9, keep=0.75, scale_factor=0.5, interrupt=3)

    def make_model(self):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class TestProxy(TestSelectiveBackprop):
    """A net beside the model, which trains in each step."""

    def make_algorithm(self):
        def small():  # without BatchNorm, whose rows see those of their rank
            return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4, 4))

        return SelectiveBackprop(start=0.2, end=0.9, interrupt=3, scorer="proxy", proxy=small)


class TestRho(TestSelectiveBackprop):
    """A forward of the model, and of one that was trained on other data."""

    def make_algorithm(self):
        return SelectiveBackprop(start=0, end=1, interrupt=0, scorer="rho", irreducible=self.make_model)


class TestInfoBatch(AlgorithmConformance):
    """With batches that have ids."""

    def make_algorithm(self):
        return InfoBatch()

    def make_batches(self):
        batches = list(super().make_batches())
        ids = torch.arange(sum(len(targets) for _, targets in batches)).split(len(batches[0][1]))
        return [(*batch, own) for batch, own in zip(batches, ids, strict=True)]


class TestSortSelectiveBackpropFirst(PassConformance):
    """The pass that puts it first."""

    def make_pass(self):
        return sort_selective_backprop_first
