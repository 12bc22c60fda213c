"""Algorithms that break a promise about metadata, match, State or generators: one fault each."""

import random

import torch

from engine_core import Algorithm, AlgorithmMetadata, Event

from .subjects import AtLoss, OfAPair, OnTuples, caught_by


@caught_by("test_match_returns_bool")
class ForgetsToReturn(AtLoss):
    def match(self, event, state):
        super().match(event, state)


@caught_by("test_metadata")
class OfAnotherHookAPI(AtLoss):
    metadata = AlgorithmMetadata.model_construct(events=(Event.AFTER_LOSS,), writes=("loss",), hook_api=2)


@caught_by("test_match_is_pure")
class CountsInMatch(AtLoss):
    asked = 0

    def match(self, event, state):
        self.asked += 1
        return super().match(event, state)


@caught_by("test_match_is_pure")
class WritesInMatch(AtLoss):
    def match(self, event, state):
        state.metrics = {**state.metrics, "asked": state.metrics.get("asked", 0) + 1}
        return super().match(event, state)


@caught_by("test_match_only_declared_events")
class AlwaysTrue(AtLoss):
    def match(self, event, state):
        return True


@caught_by("test_match_only_declared_events")
class MisspellsAnEvent(AtLoss):
    def match(self, event, state):
        return event in {"after_loss", "after_lss"}


@caught_by("test_match_is_fast")
class SlowToAnswer(AtLoss):
    def match(self, event, state):
        return sum(range(30_000)) > 0 and super().match(event, state)


@caught_by("test_writes_declared")
class DeclaresLess(AtLoss):
    metadata = AlgorithmMetadata(events=("after_loss",), writes=("outputs",))


@caught_by("test_writes_declared")
class ChangesInPlace(OnTuples):
    metadata = AlgorithmMetadata(events=("after_dataloader",), writes=("batch",))

    def apply(self, event, state, logger):
        state.batch[0].add_(0.1)


@caught_by("test_restores")
class LeavesItChanged(OfAPair):
    def apply(self, event, state, logger):
        if event is Event.BEFORE_FORWARD:
            super().apply(event, state, logger)


@caught_by("test_restores_after_an_exception")
class NeedsTheForward(OfAPair):
    """Restores only when there are outputs of this forward."""

    def match(self, event, state):
        return event is Event.BEFORE_FORWARD or (event is Event.AFTER_FORWARD and state.outputs is not self.former)

    def apply(self, event, state, logger):
        self.rate = state.optimizers[0].param_groups[0]
        if event is Event.BEFORE_FORWARD:
            self.former, self.rate["lr"] = state.outputs, self.rate["lr"] / 2
        else:
            self.former, self.rate["lr"] = None, self.rate["lr"] * 2

    metadata = AlgorithmMetadata(events=("before_forward", "after_forward"), writes=("optimizers",))
    former = None


@caught_by("test_restores_after_an_exception")
class RestoresAfterBatchesOnly(Algorithm):
    """Evaluates with other weights, and forgets them if evaluation fails at its start."""

    metadata = AlgorithmMetadata(
        events=("eval_start", "eval_end"), writes=("model",), tags=("swap",), conflicts=("@swap",)
    )

    def match(self, event, state):
        return event is Event.EVAL_START or (event is Event.EVAL_END and state.eval_timestamp.batch > 0)

    @torch.no_grad()
    def apply(self, event, state, logger):
        bias = list(state.model.parameters())[-1]
        if event is Event.EVAL_START:
            self.trained = bias.clone()
            bias.add_(1)
        else:
            bias.copy_(self.trained)


@caught_by("test_no_global_random_draw", also=["test_two_ranks"])
class DrawsFromTorch(AtLoss):
    def factor(self, state):
        return 1 + 0.1 * torch.rand(()).item()


@caught_by("test_no_global_random_draw", also=["test_two_ranks"])
class DrawsFromNumPy(AtLoss):
    def factor(self, state):
        import numpy as np  # noqa: PLC0415  it need not be there for the other tests

        return 1 + 0.1 * np.random.rand()


@caught_by("test_no_global_random_draw", also=["test_two_ranks"])
class DrawsFromPython(AtLoss):
    def factor(self, state):
        return 1 + 0.1 * random.random()


@caught_by("test_no_global_random_draw")
class SeedsTheGlobalGenerator(AtLoss):
    def validate(self, state):
        torch.manual_seed(1)
