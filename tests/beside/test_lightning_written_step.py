"""A step that a user wrote fires the events of forward and loss, and leaves the module as it was.

Its targets are any item of its batch, and algorithms have to mean the same one.
"""

import copy
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from engine_core import Algorithm, AlgorithmMetadata, State
from engine_core.errors import ArgumentError, EngineError
from engine_core.loop import Loop, patched
from engine_core.needs import EVERYTHING
from engine_core_lightning.written import WrittenStep

BATCH = X, Y = torch.ones(3, 2), torch.zeros(3, 1)
OTHER = torch.full((3, 1), 7.0)


class Owner(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.criterion = nn.Linear(2, 1), nn.MSELoss()

    def step(self, batch):
        return self.criterion(self.net(batch[0]), batch[1])

    def twice(self, batch):
        return self.step(batch) + self.step(batch)


class Shift(Algorithm):
    """Adds 1 to the item under its key while the loss is computed, where it may call model and loss itself."""

    metadata = AlgorithmMetadata(events=("before_loss", "after_loss"), writes=("batch",))

    def __init__(self, key=1):
        self.key = key

    def match(self, event, state):
        return event in self.metadata.events

    def apply(self, event, state, logger):
        if self.key == 1:
            state.loss_fn(state.model(X), Y)
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


def written(owner, *algorithms, model="net", loss_fn="criterion"):
    loop = Loop(State(algorithms=[*algorithms]), EVERYTHING)
    return WrittenStep(loop, owner, model=model, loss_fn=loss_fn)


def train(step, own, batch=BATCH, how="train"):
    """Return the loss of one step."""
    with ExitStack() as stack:
        step.watch(stack)
        return getattr(step, how)(own, batch)


def shifted(owner):
    return mse_loss(owner.net(X), Y + 1)


# ---- model and loss


def test_a_loss_called_by_keywords_is_refused_in_training_alone():
    step = written(owner := Owner())
    own = lambda batch: owner.criterion(input=owner.net(batch[0]), target=batch[1])  # noqa: E731
    says = "call self.criterion with outputs and targets .* position; it gave 0 so, and in"
    with pytest.raises(EngineError, match=says):
        train(step, own)
    assert torch.equal(train(step, own, how="evaluate"), owner.step(BATCH))


def test_a_loss_or_a_model_that_is_replaced_in_training_is_named():
    for name in ("criterion", "net"):
        step = written(owner := Owner())

        def own(batch, owner=owner, name=name):
            setattr(owner, name, {"criterion": nn.L1Loss, "net": lambda: nn.Linear(2, 1)}[name]())
            return owner.step(batch)

        with pytest.raises(EngineError, match=f"^self.{name} got another value while training ran"):
            train(step, own)


def test_a_name_with_dots_is_one_further_down():
    owner = Owner()
    owner.parts = nn.ModuleDict({"net": owner.net, "loss": owner.criterion})
    step = written(owner, Shift(), model="parts.net", loss_fn="parts.loss")
    loss = train(step, lambda batch: owner.parts.loss(owner.parts.net(batch[0]), batch[1]))
    assert torch.equal(loss, shifted(owner))
    assert "loss" not in vars(owner.parts)

    step.loop.state.model = nn.Identity()
    step.put_model()
    assert owner.parts.net is step.loop.state.model
    with pytest.raises(ArgumentError, match=r"model='parts.nett': Owner has no such model"):
        written(owner, model="parts.nett")


def test_model_and_loss_are_called_once_each_but_without_a_loss_the_step_is_whole():
    step = written(owner := Owner())
    with pytest.raises(EngineError, match=r"self.net\(...\) 2 times and self.criter"):
        train(step, owner.twice)
    step = written(owner, Shift(), loss_fn=None)
    assert torch.equal(train(step, owner.twice), owner.twice(BATCH))
    assert step.loop.state.outputs is None and step.loop.state.loss_fn is None


def test_an_evaluation_has_outputs_and_loss():
    step = written(owner := Owner())
    with ExitStack() as stack:
        step.watch(stack)
        step.evaluate(owner.step, BATCH)
        state = step.loop.state
        assert torch.equal(state.outputs, owner.net(X)) and torch.equal(state.loss, owner.step(BATCH))
        step.evaluate(lambda _: {"loss": 3}, BATCH)
        assert (state.outputs, state.loss) == (None, 3)


def test_a_missing_attribute_is_named_with_the_nearest():
    with pytest.raises(ArgumentError, match="loss_fn='criterium': Owner has no such loss_fn; did you mean 'criterion'"):
        written(Owner(), loss_fn="criterium")
    with ExitStack() as stack:
        stack.enter_context(patched(owner := Owner(), "eval", lambda original: original()))
        with pytest.raises(ArgumentError, match=r"model='xyz': Owner has no such model; known: criterion, net$"):
            written(owner, model="xyz")
        with pytest.raises(ArgumentError, match=r"loss_fn='xyz': .* known: criterion, net, step, twice$"):
            written(owner, loss_fn="xyz")


def test_a_patch_leaves_no_trace_and_a_copy_is_the_originals():
    owner = Owner()
    before = [*vars(owner)]
    with ExitStack() as stack:
        stack.enter_context(patched(owner, "criterion", lambda original, *given: original(*given) * 2))
        stack.enter_context(patched(owner, "criterion", lambda original, *given: original(*given) + 1))
        assert torch.equal(owner.step(BATCH), nn.MSELoss()(owner.net(X), Y) * 2 + 1)
        assert owner.criterion.reduction == "mean"
        assert copy.deepcopy(owner).criterion.__class__ is nn.MSELoss
    assert [*vars(owner)] == before


# ---- targets


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
    "a third item": Pair(2, (X, OTHER, Y), lambda batch: batch[2]),
    "a list": Pair(1, [*BATCH], lambda batch: batch[1]),
    "a dict": Pair("y", {"x": X, "y": Y}, lambda batch: batch["y"]),
    "a named tuple": Pair("y", Named(*BATCH), lambda batch: batch.y),
    "attributes": Pair("y", SimpleNamespace(x=X, y=Y), lambda batch: batch.y),
    "a dict in a tuple": Pair(
        (lambda batch: batch[1]["y"], _set_inner), (X, {"id": ["a"], "y": Y}), lambda batch: batch[1]["y"]
    ),
}


@pytest.mark.parametrize("where", BATCHES)
def test_targets_may_be_any_item_of_the_batch(where):
    key, batch, get = BATCHES[where]
    step = written(owner := Owner(), Shift(key))
    loss = train(step, lambda batch: owner.criterion(owner.net(X), get(batch)), batch)
    assert torch.equal(loss, shifted(owner))


def test_what_else_the_loss_is_given_is_replaced_too():
    owner = Owner()
    del owner.criterion
    owner.criterion = lambda outputs, targets, extra, *, scale: (extra.clone(), scale.clone())
    step = written(owner, Shift(2))
    own = lambda batch: owner.criterion(owner.net(batch[0]), batch[1], batch[2], scale=batch[2])  # noqa: E731
    assert all(torch.equal(given, OTHER + 1) for given in train(step, own, (*BATCH, OTHER)))


@pytest.mark.parametrize(
    ("key", "batch", "given", "place"),
    [
        (1, BATCH, lambda batch: batch[1].clone(), r"batch\[1\]"),
        (1, (X, OTHER, Y), lambda batch: Y, r"batch\[1\]"),
        ("z", {"x": X, "z": OTHER, "y": Y}, lambda batch: Y, r"batch\['z'\]"),
    ],
)
def test_an_item_that_the_loss_does_not_get_is_not_replaced_in_vain(key, batch, given, place):
    step = written(owner := Owner(), Shift(key))
    says = f"replaced the targets, {place}, and .* others to self.criterion: give it {place}"
    with pytest.raises(EngineError, match=says):
        train(step, lambda batch: owner.criterion(owner.net(X), given(batch)), batch)


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
        train(step, lambda batch: owner.criterion(owner.net(X), get(batch)), batch)


def test_a_conversion_in_the_step_is_refused_where_an_algorithm_computes_the_loss_itself():
    step = written(owner := Owner(), Looks(1))
    says = r"^Looks takes .* self.criterion what is no item of the batch: give it the it"
    with pytest.raises(EngineError, match=says):
        train(step, lambda batch: owner.criterion(owner.net(batch[0]), batch[1] + 1))
    # The same values are as good.
    loss = train(step, lambda batch: owner.criterion(owner.net(batch[0]), batch[1].clone()))
    assert torch.equal(loss, owner.step(BATCH))
