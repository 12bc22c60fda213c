"""Algorithms that are a different method on several ranks: one fault each."""

import torch

from engine_core import AlgorithmMetadata

from .subjects import AtItsEvents, AtLoss, OnTuples, caught_by


@caught_by("test_two_ranks")
class KeepsTheLargestOfEachRank(OnTuples):
    """The larger half of a rank's rows is not its part of the larger half of the batch."""

    metadata = AlgorithmMetadata(events=("after_dataloader",), writes=("batch",))

    def apply(self, event, state, logger):
        inputs, targets = state.batch
        sizes = inputs.flatten(1).abs().sum(1)
        largest = sizes.topk((len(sizes) + 1) // 2).indices.sort().values
        state.batch = (inputs[largest], targets[largest])


@caught_by("test_two_ranks")
class DividesByAMeanOfMeans(AtLoss):
    """The ranks have different numbers of rows."""

    def factor(self, state):
        means = state.ranks.table([state.outputs.detach().abs().mean().item()])
        return 1 / (1 + sum(mean for (mean,) in means) / state.world_size)


@caught_by("test_two_ranks")
class LetsOneRankAskForTheSum(AtLoss):
    """The others never answer."""

    def factor(self, state):
        return 0.5 if state.rank or not state.ranks.sum(1) else 0.4


@caught_by("test_two_ranks")
class ScalesGradientsForEachRank(AtItsEvents):
    """By a draw of its rank's: the ranks end with different models."""

    metadata = AlgorithmMetadata(events=("after_train_batch",), writes=("model",))

    def apply(self, event, state, logger):
        seed = state.derive_seed("factor") + state.timestamp.batch
        factor = torch.rand((), generator=torch.Generator().manual_seed(seed))
        for weight in state.model.parameters():
            if weight.grad is not None:
                weight.grad.mul_(factor)
