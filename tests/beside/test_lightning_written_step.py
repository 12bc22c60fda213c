"""A step that a user wrote fires the events of forward and loss, and leaves the module as it was."""

import copy
from contextlib import ExitStack

import pytest
import torch
from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, State
from engine_core.errors import ArgumentError, EngineError
from engine_core.loop import Loop, patched
from engine_core.needs import EVERYTHING
from engine_core_lightning.written import WrittenStep

BATCH = torch.ones(3, 2), torch.zeros(3, 1)


class Owner(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.criterion = nn.Linear(2, 1), nn.MSELoss()

    def step(self, batch):
        return self.criterion(self.net(batch[0]), batch[1])

    def twice(self, batch):
        return self.step(batch) + self.step(batch)

    def cloned(self, batch):
        return self.criterion(self.net(batch[0]), batch[1].clone())


class ShiftTargets(Algorithm):
    """Adds 1 to the targets while the loss is computed, where it calls model and loss itself."""

    metadata = AlgorithmMetadata(events=("before_loss", "after_loss"), writes=("batch",))

    def match(self, event, state):
        return event in self.metadata.events

    def apply(self, event, state, logger):
        state.loss_fn(state.model(state.batch[0]), state.batch[1])
        if event == "before_loss":
            self.kept = state.batch
            state.batch_set_item(1, state.batch[1] + 1)
        else:
            state.batch = self.kept


def written(owner, *algorithms, model="net", loss_fn="criterion"):
    loop = Loop(State(algorithms=[*algorithms]), EVERYTHING)
    return WrittenStep(loop, owner, model=model, loss_fn=loss_fn)


def train(step, own, batch=BATCH):
    """Return the loss of one step of training."""
    with ExitStack() as stack:
        step.watch(stack)
        return step.train(own, batch)


def test_algorithms_replace_the_targets_of_the_steps_loss():
    step = written(owner := Owner(), ShiftTargets())
    with ExitStack() as stack:
        step.watch(stack)
        loss = step.train(owner.step, BATCH)
    assert torch.equal(loss, nn.functional.mse_loss(owner.net(BATCH[0]), BATCH[1] + 1))


def test_other_targets_than_the_batchs_are_refused_where_one_replaces_them():
    step = written(owner := Owner(), ShiftTargets())
    with ExitStack() as stack, pytest.raises(EngineError, match=r"gives others to self.criterion: give it batch\[1\]"):
        step.watch(stack)
        step.train(owner.cloned, BATCH)


def test_a_loss_called_by_keywords_is_refused_in_training_alone():
    step = written(owner := Owner())
    own = lambda batch: owner.criterion(input=owner.net(batch[0]), target=batch[1])  # noqa: E731
    with pytest.raises(
        EngineError, match=r"call self.criterion with outputs and targets .* position; it gave 0 so, and in"
    ):
        train(step, own)
    with ExitStack() as stack:
        step.watch(stack)
        assert torch.equal(step.evaluate(own, BATCH), owner.step(BATCH))


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
    step = written(owner, ShiftTargets(), model="parts.net", loss_fn="parts.loss")
    loss = train(step, lambda batch: owner.parts.loss(owner.parts.net(batch[0]), batch[1]))
    assert torch.equal(loss, nn.functional.mse_loss(owner.net(BATCH[0]), BATCH[1] + 1))
    assert "loss" not in vars(owner.parts)

    step.loop.state.model = nn.Identity()
    step.put_model()
    assert owner.parts.net is step.loop.state.model
    with pytest.raises(ArgumentError, match=r"model='parts.nett': Owner has no such model"):
        written(owner, model="parts.nett")


def test_model_and_loss_are_called_once_each():
    step = written(owner := Owner())
    with ExitStack() as stack, pytest.raises(EngineError, match=r"self.net\(...\) 2 times and self.criter"):
        step.watch(stack)
        step.train(owner.twice, BATCH)


def test_without_a_loss_the_step_is_whole():
    step = written(owner := Owner(), ShiftTargets(), loss_fn=None)
    with ExitStack() as stack:
        step.watch(stack)
        assert torch.equal(step.train(owner.twice, BATCH), owner.twice(BATCH))
    assert step.loop.state.outputs is None and step.loop.state.loss_fn is None


def test_an_evaluation_has_outputs_and_loss():
    step = written(owner := Owner())
    with ExitStack() as stack:
        step.watch(stack)
        step.evaluate(owner.step, BATCH)
        state = step.loop.state
        assert torch.equal(state.outputs, owner.net(BATCH[0])) and torch.equal(state.loss, owner.step(BATCH))
        step.evaluate(lambda _: {"loss": 3}, BATCH)
        assert (state.outputs, state.loss) == (None, 3)


def test_a_missing_attribute_is_named_with_the_nearest():
    with pytest.raises(ArgumentError, match="loss_fn='criterium': Owner has no such loss_fn; did you mean 'criterion'"):
        written(Owner(), loss_fn="criterium")
    with ExitStack() as stack:
        stack.enter_context(patched(owner := Owner(), "eval", lambda original: original()))
        with pytest.raises(ArgumentError, match=r"model='xyz': Owner has no such model; known: criterion, net$"):
            written(owner, model="xyz")
        with pytest.raises(ArgumentError, match=r"loss_fn='xyz': .* known: cloned, criterion, net, step, twice$"):
            written(owner, loss_fn="xyz")


def test_a_patch_leaves_no_trace_and_a_copy_is_the_originals():
    owner = Owner()
    before = [*vars(owner)]
    with ExitStack() as stack:
        stack.enter_context(patched(owner, "criterion", lambda original, *given: original(*given) * 2))
        stack.enter_context(patched(owner, "criterion", lambda original, *given: original(*given) + 1))
        assert torch.equal(owner.step(BATCH), nn.MSELoss()(owner.net(BATCH[0]), BATCH[1]) * 2 + 1)
        assert owner.criterion.reduction == "mean"
        assert copy.deepcopy(owner).criterion.__class__ is nn.MSELoss
    assert [*vars(owner)] == before
