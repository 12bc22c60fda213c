"""Algorithms that break a promise about metadata, match, State, generators, needs or `repr`: one fault each."""

import importlib
import itertools
import random

import torch
from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, Event
from engine_core.batch import Batches
from engine_core.errors import ArgumentError

from .subjects import AtItsEvents, AtLoss, Counting, OfAPair, OnTuples, caught_by, fault

FOR_ANOTHER_HOOK_API = AlgorithmMetadata.model_construct(events=(Event.AFTER_LOSS,), writes=("loss",), hook_api=2)
WITHOUT_THE_LOSS = AlgorithmMetadata(events=("after_loss",), writes=("outputs",))
DRAWS = {
    "DrawsFromTorch": lambda: torch.rand(()).item(),
    "DrawsFromNumPy": lambda: importlib.import_module("numpy").random.rand(),  # noqa: PLW0108
    "DrawsFromPython": random.random,
}

fault("test_metadata", "OfAnotherHookAPI", metadata=FOR_ANOTHER_HOOK_API)
fault("test_writes_declared", "DeclaresLess", metadata=WITHOUT_THE_LOSS)
fault("test_match_returns_bool", "ForgetsToReturn", match=lambda self, event, state: None)
fault("test_match_only_declared_events", "AlwaysTrue", match=lambda self, event, state: True)
fault(
    "test_match_only_declared_events",
    "Misspells",
    match=lambda self, event, state: event in ("after_loss", "after_lss"),
)
fault("test_match_is_fast", "Slow", match=lambda self, event, state: sum(range(30_000)) > 0 and event == "after_loss")
fault("test_repr", "ShowsItsAddress", __repr__=object.__repr__)
fault("test_repr", "ShowsTooMuch", __repr__=lambda self: f"ShowsTooMuch({[*range(1000)]})")
for name, draw in DRAWS.items():
    with_noise = lambda self, state, draw=draw: 1 + 0.1 * draw()  # noqa: E731
    fault("test_no_global_random_draw", name, also=["test_two_ranks"], factor=with_noise)


@caught_by("test_finish", also=["test_resume"])
class FinishesTooEarly(AtLoss):
    def apply(self, event, state, logger):
        super().apply(event, state, logger)
        self.finish()


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


@caught_by("test_no_global_random_draw")
class SeedsTheGlobalGenerator(AtLoss):
    def validate(self, state):
        torch.manual_seed(1)


@caught_by("test_arguments")
class TakesNaN(AtLoss):
    def __init__(self, scale=0.5):
        if scale <= 0:
            raise ArgumentError(f"scale={scale!r} has to be positive")
        self.scale = scale


@caught_by("test_repr")
class ShowsHowOftenItWasShown(AtLoss):
    shown = 0

    def __repr__(self):
        self.shown += 1
        return f"ShowsHowOftenItWasShown({self.shown})"


@caught_by("test_repr")
class ShowsItsNumber(AtLoss):
    made = itertools.count()

    def __init__(self):
        self.number = next(self.made)

    def __repr__(self):
        return f"ShowsItsNumber({self.number})"


@caught_by("test_repr")
class ShowsWhatItHasSeen(AtLoss):
    seen = ""

    def factor(self, state):
        self.seen = str([float(state.loss.detach())] * 100)
        return 0.5

    def __repr__(self):
        return f"ShowsWhatItHasSeen({self.seen})"


@caught_by("test_arguments")
class ComparesTensors(AtLoss):
    weights = torch.ones(2)

    def __eq__(self, other):
        return self.weights == getattr(other, "weights", 0)

    def __hash__(self):
        return 1


class AtGradients(AtItsEvents):
    """Runs before the optimizers step."""

    metadata = AlgorithmMetadata(events=("after_train_batch",), writes=("model",))


@caught_by("test_needs", also=["test_writes_declared"])
class ComputesGradientsAgain(AtGradients):
    """Without a closure, it does nothing."""

    def apply(self, event, state, logger):
        if state.loop.closure is not None:
            with torch.no_grad():
                for weight in state.model.parameters():
                    weight.mul_(0.99)
            state.loop.closure()


@caught_by("test_needs")
class ScalesByProgress(AtLoss):
    """Without a duration it does something else."""

    def factor(self, state):
        elapsed = state.get_elapsed_duration()
        return 1.0 if elapsed is None else 1 - 0.5 * elapsed.value


@caught_by("test_needs", also=["test_batches", "test_two_ranks"])
class AsksForTheLossOfRows(AtLoss):
    """Without a loss function there is none."""

    def factor(self, state):
        first = state.loss_fn(state.outputs[:1].detach(), state.batch[1][:1])
        return 1 / (1 + first.item())


@caught_by("test_needs")
class AddsALayer(AtItsEvents):
    """An optimizer that was made before does not train it."""

    metadata = AlgorithmMetadata(events=("init",), writes=("model",))

    def apply(self, event, state, logger):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            for name, module in [*state.model.named_modules()]:
                if isinstance(module, nn.LayerNorm):
                    parent, _, key = name.rpartition(".")
                    setattr(state.model.get_submodule(parent), key, nn.LayerNorm(module.normalized_shape))


@caught_by("test_needs")
class SkipsEachThirdStep(AtGradients):
    """In a loop that steps all the same nothing is skipped."""

    def apply(self, event, state, logger):
        if state.timestamp.batch % 3 == 2:
            state.skip_step()


@caught_by("test_needs")
class StopsAfterThreeBatches(Algorithm):
    """In a loop that does not ask, training continues."""

    metadata = AlgorithmMetadata(events=("batch_end",))

    def match(self, event, state):
        return event is Event.BATCH_END and state.timestamp.batch == 3

    def apply(self, event, state, logger):
        state.stop_training("it is enough")


@caught_by("test_needs", also=["test_batches"])
class ExpectsTheBatchOfTheStep(AtItsEvents):
    """Where a step has several batches, the last is not the one that it saw at the beginning."""

    metadata = AlgorithmMetadata(events=("before_train_batch", "after_train_batch"), writes=())

    def apply(self, event, state, logger):
        if event is Event.BEFORE_TRAIN_BATCH:
            self.seen = state.batch[0]
        elif self.seen is not state.batch[0]:
            raise RuntimeError(f"that is another batch, of {Batches().rows(state.batch)} rows")


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
