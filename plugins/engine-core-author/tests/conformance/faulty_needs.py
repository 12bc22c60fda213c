"""Algorithms that use what they don't say that they need of the training loop: one fault each."""

import torch
from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, Event
from engine_core.batch import Batches

from .subjects import AtItsEvents, AtLoss, caught_by


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
