"""Algorithms with faults that are seen only in the right run: long, evaluated, cut within an epoch, with two seeds."""

import torch

from engine_core import AlgorithmMetadata, Event

from .subjects import AtItsEvents, AtLoss, Counting, caught_by


@caught_by("test_restores")
class ShrinksAfterEvaluation(AtItsEvents):
    metadata = AlgorithmMetadata(events=("eval_end",), writes=("model",))

    @torch.no_grad()
    def apply(self, event, state, logger):
        for weight in state.model.parameters():
            weight.mul_(0.9)


@caught_by("test_no_global_random_draw")
class SeedsItsGeneratorWithAConstant(Counting):
    def apply(self, event, state, logger):
        if event is Event.INIT:
            self.generator = torch.Generator().manual_seed(0)
        else:
            super().apply(event, state, logger)

    def factor(self, state):
        return 1 + 0.1 * torch.rand((), generator=self.generator).item()

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])


@caught_by("test_resume")
class CountsWithinTheEpoch(AtLoss):
    metadata = AlgorithmMetadata(events=("epoch_start", "after_loss"), writes=("loss",))
    count = 0

    def apply(self, event, state, logger):
        if event is Event.EPOCH_START:
            self.count = 0
        else:
            super().apply(event, state, logger)

    def factor(self, state):
        self.count += 1
        return 1 + 0.1 * self.count


@caught_by("test_arguments")
class KeepsWhateverItIsGivenToItself(AtLoss):
    def __init__(self, scale):
        self._scale = scale

    @classmethod
    def make(cls):
        return cls(0.5)


@caught_by("test_microbatches")
class TakesLargeMicrobatchesOnly(AtLoss):
    """Of microbatches of 3, 3 and 2 rows it takes two."""

    def match(self, event, state):
        return super().match(event, state) and len(state.outputs) >= 3
