"""What an author may say of two ranks, and what the kit compares then; see conformance/faulty_runs for faults."""

import pytest
import torch
from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, Event
from engine_core.errors import EngineError
from engine_core.randomness import OwnGenerator
from engine_core_author import AlgorithmConformance, BrokenRule

from .conformance.subjects import AtLoss


class AddNoise(Algorithm):
    """Adds noise to the inputs of a microbatch."""

    metadata = AlgorithmMetadata(events=("before_forward",), writes=("batch",))

    def __init__(self, shared=True):
        self.generator = OwnGenerator("noise", shared=shared)

    def match(self, event, state):
        return event is Event.BEFORE_FORWARD

    def apply(self, event, state, logger):
        inputs = state.batch_get_item(0)
        state.batch_set_item(0, inputs + torch.randn(inputs.shape, generator=self.generator.of(state, self)))


class CentreOverAll(AddNoise):
    """Subtracts the mean of the global batch."""

    def apply(self, event, state, logger):
        inputs = state.batch_get_item(0)
        sums = state.ranks.table([0.0, 0.0] if state.is_placeholder else [inputs.sum().item(), inputs.numel()])
        total, count = (sum(column) for column in zip(*sums, strict=True))
        state.batch_set_item(0, inputs - total / count)


class RefusesRanks(AtLoss):
    def validate(self, state):
        if state.world_size > 1:
            raise EngineError("it is for one process")


def judged(made, on_ranks="equal", model=None):
    """Return what the check says: passed, skipped, or what was seen."""

    class Kit(AlgorithmConformance):
        def make_algorithm(self):
            return made()

        def make_model(self):
            return super().make_model() if model is None else model()

        def make_others(self):
            return []

    Kit.on_ranks = on_ranks
    try:
        Kit().test_two_ranks()
    except BrokenRule as error:
        return error.seen
    except pytest.skip.Exception as skipped:
        return f"skipped: {skipped}"
    return "passed"


@pytest.mark.parametrize(
    ("made", "on_ranks", "said"),
    [
        (CentreOverAll, "equal", "passed"),
        (RefusesRanks, "equal", "passed"),
        (AddNoise, "equal", "two ranks and one process end with different results"),
        (AddNoise, "microbatches", "two ranks, compared with microbatches of 4 rows, and one process end with"),
        (lambda: AddNoise(shared=False), "law", "passed"),
    ],
)
def test_two_ranks_are_compared_with_what_the_kit_says(made, on_ranks, said):
    assert judged(made, on_ranks).startswith(said)


class Draws(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 4)

    def forward(self, inputs):
        return self.linear(inputs.flatten(1) + torch.randn(inputs.shape[0], 64))


def test_a_model_that_draws_is_not_compared():
    assert judged(AddNoise, model=Draws).startswith("skipped: without it too two ranks differ from one process")


def test_dropout_and_batch_norm_are_compared_as_they_do_not_see_other_rows_here():
    def model():
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Linear(64, 4))

    assert judged(AtLoss, model=model) == "passed"
