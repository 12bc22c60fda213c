"""Algorithms that fail in some run: saved, repeated, with other batches, beside others, on ranks. One fault each."""

import torch
from torch.nn import functional as F

from engine_core import AlgorithmMetadata, Callback, Event

from .subjects import AtItsEvents, AtLoss, Counting, OfAPair, OnTuples, caught_by, fault

fault("test_batches", "NeedsTuples", base=OfAPair, validate=lambda self, state: None)
fault(
    "test_order_independent", "SquaresTheLoss", also=["test_two_ranks"], factor=lambda self, state: state.loss.detach()
)
fault(
    "test_two_ranks",
    "LetsOneRankAskForTheSum",  # the others never answer
    factor=lambda self, state: 0.5 if state.rank or not state.ranks.sum(1) else 0.4,
)


@caught_by("test_state_dict")
class SavesAGenerator(Counting):
    def state_dict(self):
        return {"count": self.count, "generator": torch.Generator()}


@caught_by("test_state_dict")
class SavesTheLivingTensor(AtLoss):
    metadata = Counting.metadata

    def apply(self, event, state, logger):
        if event is Event.INIT:
            self.total = torch.zeros(())
        else:
            super().apply(event, state, logger)

    def factor(self, state):
        self.total += 1
        return 1 + 0.1 * self.total.item()

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total.copy_(state["total"])


@caught_by("test_resume")
class ForgetsItsCount(Counting):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@caught_by("test_two_instances", also=["test_two_ranks"])
class SharesItsCount(Counting):
    shared = [0]  # noqa: RUF012  the fault

    @property
    def count(self):
        return self.shared[0]

    @count.setter
    def count(self, value):
        self.shared[0] = value


@caught_by("test_two_instances")
class RefusesAnotherTooLate(AtLoss):
    def factor(self, state):
        if sum(isinstance(other, RefusesAnotherTooLate) for other in state.algorithms) > 1:
            raise RuntimeError("one is enough")
        return 0.5


@caught_by("test_second_run")
class KeepsTheFirstModel(Counting):
    model = None

    def apply(self, event, state, logger):
        if event is Event.INIT:
            self.model = self.model or state.model
        else:
            super().apply(event, state, logger)

    def factor(self, state):
        return 0.5 if self.model is state.model else 1.0


@caught_by("test_batches")
class PassesDictsOver(OfAPair):
    def match(self, event, state):
        return isinstance(state.batch, (tuple, list)) and super().match(event, state)

    def validate(self, state):
        pass


@caught_by("test_ragged_batches", also=["test_two_ranks"])
class NeedsEqualBatches(OnTuples):
    metadata = AlgorithmMetadata(events=("init", "after_dataloader"), writes=("batch",))
    weights = None

    def apply(self, event, state, logger):
        if event is Event.INIT:
            self.weights = None
            return
        if self.weights is None:
            self.weights = torch.linspace(0.9, 1.1, len(state.batch[0])).view(-1, 1, 1, 1)
        state.batch_set_item(0, state.batch[0] * self.weights)


@caught_by("test_ragged_batches")
class NeedsTwoRows(AtItsEvents):
    metadata = AlgorithmMetadata(events=("after_loss",), writes=("loss",))

    def apply(self, event, state, logger):
        state.loss = state.loss * state.outputs.detach().float().std(0).clamp(0.5, 1.5).mean()


@caught_by("test_microbatches")
class KeepsTheWholeTargets(OnTuples):
    metadata = AlgorithmMetadata(events=("batch_start", "after_loss"), writes=("loss",))

    def apply(self, event, state, logger):
        if event is Event.BATCH_START:
            self.targets = state.batch[1]
        else:
            state.loss = state.loss + 0 * F.cross_entropy(state.outputs, self.targets)


@caught_by("test_autocast")
class MixesFormats(AtItsEvents):
    metadata = AlgorithmMetadata(events=("after_forward",), writes=("outputs",))

    def apply(self, event, state, logger):
        state.outputs = state.outputs @ torch.eye(state.outputs.shape[1])


@caught_by("test_compile")
class IndexesTheModel(AtItsEvents):
    metadata = AlgorithmMetadata(events=("after_train_batch",), writes=("model",), tags=("compile",))

    def apply(self, event, state, logger):
        model = state.model
        first = getattr(model, "model", model)[0]
        first.weight.grad.mul_(0.5)


class AtEachEvent(Callback):
    """Listens to all events."""


for event in Event:
    setattr(AtEachEvent, event.value, lambda self, state, logger: None)


@caught_by("test_unmatched_cost")
class BringsListeners(AtLoss):
    """Brings ten, since one costs an event hardly more than the limit."""

    metadata = Counting.metadata

    def apply(self, event, state, logger):
        if event is Event.INIT:
            state.callbacks.extend(AtEachEvent() for _ in range(10))
        else:
            super().apply(event, state, logger)


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
class ScalesGradientsForEachRank(AtItsEvents):
    """By a draw of its rank's: the ranks end with different models."""

    metadata = AlgorithmMetadata(events=("after_train_batch",), writes=("model",))

    def apply(self, event, state, logger):
        seed = state.derive_seed("factor") + state.timestamp.batch
        factor = torch.rand((), generator=torch.Generator().manual_seed(seed))
        for weight in state.model.parameters():
            if weight.grad is not None:
                weight.grad.mul_(factor)
