"""The targets of a step that a user wrote are any item of its batch, and algorithms have to mean the same one."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, State
from engine_core.errors import EngineError
from engine_core.loop import Loop
from engine_core.needs import EVERYTHING
from engine_core_lightning.written import WrittenStep

BATCH = torch.ones(3, 2), torch.zeros(3, 1)
OTHER = torch.full((3, 1), 7.0)


class Named(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Pair(NamedTuple):
    """Where the targets are: the key of an algorithm, and what a step takes from the batch."""

    key: Any
    batch: Any
    get: Any


def _set_inner(batch, value):
    return batch[0], {**batch[1], "y": value}


BATCHES = {
    "a tuple": Pair(1, BATCH, lambda batch: batch[1]),
    "a third item": Pair(2, (BATCH[0], OTHER, BATCH[1]), lambda batch: batch[2]),
    "a list": Pair(1, [*BATCH], lambda batch: batch[1]),
    "a dict": Pair("y", dict(zip("xy", BATCH, strict=True)), lambda batch: batch["y"]),
    "a named tuple": Pair("y", Named(*BATCH), lambda batch: batch.y),
    "attributes": Pair("y", SimpleNamespace(x=BATCH[0], y=BATCH[1]), lambda batch: batch.y),
    "a dict in a tuple": Pair(
        (lambda batch: batch[1]["y"], _set_inner), (BATCH[0], {"id": ["a"], "y": BATCH[1]}), lambda batch: batch[1]["y"]
    ),
}


class Owner:
    def __init__(self):
        self.net, self.criterion = nn.Linear(2, 1), nn.MSELoss()

    def step(self, batch):
        return self.criterion(self.net(batch[0]), batch[1])


class Shift(Algorithm):
    """Adds 1 to the item under its key while the loss is computed."""

    metadata = AlgorithmMetadata(events=("before_loss", "after_loss"), writes=("batch",))

    def __init__(self, key):
        self.key = key

    def match(self, event, state):
        return event in self.metadata.events

    def apply(self, event, state, logger):
        if event == "before_loss":
            self.kept = state.batch
            state.batch_set_item(self.key, state.batch_get_item(self.key) + 1)
        else:
            state.batch = self.kept


class Looks(Algorithm):
    """Computes the loss itself for the targets under its key, as Selective Backprop does."""

    metadata = AlgorithmMetadata(events=("after_dataloader",), needs=("row_loss",))

    def __init__(self, target_key):
        self.target_key = target_key

    def match(self, event, state):
        return False

    def apply(self, event, state, logger):
        pass


def written(owner, *algorithms):
    loop = Loop(State(algorithms=[*algorithms]), EVERYTHING)
    return WrittenStep(loop, owner, model="net", loss_fn="criterion")


def train(step, own, batch=BATCH):
    """Return the loss of one step of training."""
    with ExitStack() as stack:
        step.watch(stack)
        return step.train(own, batch)


@pytest.mark.parametrize("where", BATCHES)
def test_targets_may_be_any_item_of_the_batch(where):
    key, batch, get = BATCHES[where]
    step = written(owner := Owner(), Shift(key))
    loss = train(step, lambda batch: owner.criterion(owner.net(BATCH[0]), get(batch)), batch)
    assert torch.equal(loss, nn.functional.mse_loss(owner.net(BATCH[0]), BATCH[1] + 1))


def test_what_else_the_loss_is_given_is_replaced_too():
    owner = Owner()
    owner.criterion = lambda outputs, targets, extra, *, scale: (extra.clone(), scale.clone())
    step = written(owner, Shift(2))
    own = lambda batch: owner.criterion(owner.net(batch[0]), batch[1], batch[2], scale=batch[2])  # noqa: E731
    assert all(torch.equal(given, OTHER + 1) for given in train(step, own, (*BATCH, OTHER)))


@pytest.mark.parametrize(
    ("key", "batch", "place"),
    [
        (1, (BATCH[0], OTHER, BATCH[1]), r"batch\[1\]"),
        ("z", {"x": BATCH[0], "z": OTHER, "y": BATCH[1]}, r"batch\['z'\]"),
    ],
)
def test_an_item_that_the_loss_does_not_get_is_not_replaced_in_vain(key, batch, place):
    step = written(owner := Owner(), Shift(key))
    own = lambda batch: owner.criterion(owner.net(BATCH[0]), BATCH[1])  # noqa: E731
    with pytest.raises(
        EngineError, match=f"replaced the targets, {place}, and .* others to self.criterion: give it {place}"
    ):
        train(step, own, batch)


@pytest.mark.parametrize(
    ("where", "key", "message"),
    [
        ("a third item", 1, r"target_key=1 of the batch, and .* self.criterion batch\[2\]: set target_key=2"),
        ("a dict", 1, r"target_key=1 of the batch, and .* self.criterion batch\['y'\]: set target_key='y'"),
        ("a dict in a tuple", 1, r"self.criterion batch\[1\]\['y'\]: let target_key find that"),
    ],
)
def test_an_algorithm_that_takes_other_targets_than_the_step_is_refused_with_the_key(where, key, message):
    _, batch, get = BATCHES[where]
    step = written(owner := Owner(), Looks(key))
    with pytest.raises(EngineError, match=f"^Looks takes the targets from .*{message}"):
        train(step, lambda batch: owner.criterion(owner.net(BATCH[0]), get(batch)), batch)


def test_a_conversion_in_the_step_is_refused_where_an_algorithm_computes_the_loss_itself():
    step = written(owner := Owner(), Looks(1))
    with pytest.raises(
        EngineError, match=r"^Looks takes .* self.criterion what is no item of the batch: give it the it"
    ):
        train(step, lambda batch: owner.criterion(owner.net(batch[0]), batch[1] + 1))
    assert torch.equal(
        train(step, lambda batch: owner.criterion(owner.net(batch[0]), batch[1].clone())), owner.step(BATCH)
    )  # the same values are as good
