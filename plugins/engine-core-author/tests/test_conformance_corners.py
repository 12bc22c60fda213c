"""What the conformance kit does not blame on an algorithm: the faults of others, its own parts, what is allowed."""

import random
import warnings
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, Event
from engine_core.errors import ArgumentError
from engine_core_author import BrokenRule

from .conformance.honest import NoisyLoss
from .conformance.kits import Kit, outcomes, with_outcome
from .conformance.subjects import AtLoss, Counting, OfAPair


class SavesAnOrderedDict(Counting):
    def state_dict(self):
        return OrderedDict(count=self.count)


class OncePerBatch(AtLoss):
    """Runs in the first microbatch of each batch only."""

    last = None

    def match(self, event, state):
        return super().match(event, state) and self.last != (id(state), state.timestamp.batch)

    def factor(self, state):
        self.last = (id(state), state.timestamp.batch)
        return 0.5


class FollowsTheMetrics(Algorithm):
    """Halves the learning rate while evaluation finds a high loss."""

    metadata = AlgorithmMetadata(events=("eval_end",), writes=("optimizers",))

    def match(self, event, state):
        return event is Event.EVAL_END and state.metrics["eval/loss"] > 0.5

    def apply(self, event, state, logger):
        state.optimizers[0].param_groups[0]["lr"] /= 2


@pytest.mark.full
@pytest.mark.parametrize("make", [SavesAnOrderedDict, OncePerBatch, FollowsTheMetrics])
def test_what_is_allowed_is_not_a_fault(make):
    assert with_outcome(Kit(make), "broken") == []


class AfterLoad(AtLoss):
    metadata = AlgorithmMetadata(events=("after_load",), writes=())

    def match(self, event, state):
        return event is Event.AFTER_LOAD

    def apply(self, event, state, logger):
        pass


class AtNoEvent(AfterLoad):
    metadata = AlgorithmMetadata(events=(), writes=())

    def match(self, event, state):
        return False


@pytest.mark.parametrize("cls", [AfterLoad, AtNoEvent])
def test_an_algorithm_whose_events_never_fire_need_not_run(cls):
    Kit(cls).test_writes_declared()


def test_an_algorithm_that_never_runs_is_reported_with_what_to_do():
    class Late(AtLoss):
        def match(self, event, state):
            return super().match(event, state) and state.timestamp.epoch > 10

    with pytest.raises(
        BrokenRule,
        match=r"Seen: it never ran in 8 steps of 2 epochs, so the checks have nothing to judge; return one from "
        r"make_algorithm that runs within them, or provide more batches\.",
    ):
        Kit(Late).test_writes_declared()


class Raises(AtLoss):
    def apply(self, event, state, logger):
        raise RuntimeError("not my day")


class DrawsAnew(AtLoss):
    def factor(self, state):
        return random.SystemRandom().random()


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (
            Raises,
            r"Raises \(alone too RuntimeError \(not my day\) was raised by apply at AFTER_LOSS\); 1 others are fine",
        ),
        (DrawsAnew, r"DrawsAnew \(two runs with it alone differ: "),
    ],
)
def test_another_that_does_not_work_alone_is_left_out_and_named(other, reason):
    with pytest.raises(pytest.skip.Exception, match=r"left out because of their own faults: " + reason):
        Kit(AtLoss, others=[other, NoisyLoss]).test_order_independent()


def test_numbers_as_keys_of_a_state_are_reported_with_the_advice_to_save_pairs():
    class SavesNumbers(Counting):
        def state_dict(self):
            return {"optimizer": {"state": {0: self.count}}}

    with pytest.raises(
        BrokenRule,
        match=r"state_dict\(\)\['optimizer'\]\['state'\] has the key 0, which JSON turns into a string: "
        r"save \[key, value\] pairs, list\(mapping\.items\(\)\), and take them back with dict\(pairs\)\.",
    ):
        Kit(SavesNumbers).test_state_dict()


def test_arguments_that_were_neither_seen_nor_kept_are_a_reason_to_skip():
    class Doubled(AtLoss):
        def __init__(self, scale):
            self.doubled = scale * 2

    ready = [Doubled(0.5) for _ in range(9)]
    with pytest.raises(pytest.skip.Exception, match="it is not known with which scale Doubled was made"):
        Kit(ready.pop).test_arguments()


def test_the_constructor_is_as_it_was_after_its_arguments_were_recorded():
    class Inherits(NoisyLoss):
        pass

    own, inherited = NoisyLoss.__init__, vars(Inherits).keys()
    Kit(NoisyLoss).test_arguments()
    Kit(Inherits).test_arguments()
    assert NoisyLoss.__init__ is own
    assert "__init__" not in inherited


class OfEightRows(nn.Linear):
    """A model for batches of exactly 8 rows."""

    def forward(self, rows):
        if len(rows) != 8:
            raise ValueError(f"{len(rows)} rows")
        return super().forward(rows.flatten(1))


def test_a_model_that_takes_no_microbatches_is_not_given_any():
    class OwnModel(Kit):
        def make_model(self):
            return OfEightRows(64, 4)

    OwnModel(OfAPair).test_restores_after_an_exception()


def test_batches_and_models_may_be_drawn_from_any_global_generator():
    class Drawn(Kit):
        def make_batches(self):
            inputs = [torch.tensor(np.random.rand(8, 3) * random.random(), dtype=torch.float32) for _ in range(4)]
            return [(rows, torch.rand(8, 1)) for rows in inputs]

        def make_model(self):
            model = nn.Linear(3, 1)
            nn.init.constant_(model.weight, random.random() + np.random.rand())
            return model

        def make_loss(self):
            return nn.MSELoss()

    before = (random.getstate(), np.random.get_state()[1].tolist())
    assert outcomes(Drawn(AtLoss))["test_resume"] == "passed"
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


class NeedsAdam(AtLoss):
    def validate(self, state):
        if not isinstance(state.optimizers[0], torch.optim.Adam):
            raise ArgumentError("needs_adam needs Adam")


@pytest.mark.full
def test_the_optimizer_may_be_the_authors():
    class WithAdam(Kit):
        def make_optimizers(self, parameters):
            return torch.optim.Adam(parameters, lr=0.01)

    assert outcomes(WithAdam(NeedsAdam), ["test_resume"]) == {"test_resume": "passed"}


def test_a_refusal_of_the_parts_of_the_kit_is_reported_by_one_check():
    with pytest.raises(
        BrokenRule,
        match=r"it refuses the kit's own parts: ArgumentError \(.*needs_adam needs Adam.*\) was raised by validate at "
        r"\w+; override make_model, make_batches, make_loss, make_optimizers or make_others so that they return what",
    ):
        Kit(NeedsAdam).test_writes_declared()
    found = outcomes(type("Rest", (Kit,), {"test_writes_declared": lambda _: None})(NeedsAdam))
    assert "test_writes_declared says how" in found["test_resume"]
    assert "test_writes_declared says how" in found["test_autocast"]


def test_a_warning_of_an_algorithm_is_shown_and_is_not_a_fault_where_warnings_are_errors():
    class Warns(AtLoss):
        def factor(self, state):
            warnings.warn("a small batch", UserWarning, stacklevel=2)
            return 0.5

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("error")
        Kit(Warns).test_autocast()
        Kit(Warns).test_batches()
        with pytest.raises(UserWarning):
            warnings.warn("still an error", UserWarning, stacklevel=1)
    assert {str(warning.message) for warning in shown} == {"a small batch"}
