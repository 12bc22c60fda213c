"""`state.loop.closure` computes the gradients of the batch again, as the step did, and does not disturb the step."""

import pytest
import torch
from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, Event
from engine_core.errors import EngineError

from .parts import at, batches, linear, net, rows, trainer, writing_down


def gradients(state):
    """Return copies of the gradients of the model."""
    model = state.model
    return [parameter.grad.clone() for parameter in model.parameters()]


def closure_of(state):
    """Return the closure, which has to be there."""
    assert state.loop.closure is not None
    return state.loop.closure


@pytest.mark.parametrize("settings", [{}, {"microbatch_size": 3}, {"grad_clip_norm": 0.01}, {"precision": "amp_bf16"}])
def test_at_the_same_weights_the_gradients_are_the_same(settings):
    seen = []

    def call(state):
        before = gradients(state)
        loss = closure_of(state)()
        seen.append((before, gradients(state), loss, state.loss))

    trainer(callbacks=at("after_train_batch", call), **settings).fit()
    assert len(seen) == 2
    for before, after, loss, of_state in seen:
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
        assert torch.equal(loss, of_state)


def test_the_gradients_are_those_at_the_weights_as_they_are():
    x, y = rows(8)
    model, expected = linear(), linear()
    model.bias.requires_grad = False

    def call(state):
        model.weight.data += 1
        closure_of(state)()

    trainer(
        [(x, y)], model, callbacks=at("after_train_batch", call), optimizers=torch.optim.SGD([model.weight], 0)
    ).fit()
    expected.weight.data += 1
    nn.functional.cross_entropy(expected(x), y).backward()
    assert torch.equal(model.weight.grad, expected.weight.grad)


def test_without_a_call_no_event_is_fired_again_and_with_one_those_of_the_microbatches_are():
    events = []
    inner = ["before_forward", "after_forward", "before_loss", "after_loss", "before_backward", "after_backward"]
    listens = writing_down(events, ["before_train_batch", *inner, "after_train_batch"])
    calls = at("after_train_batch", lambda state: closure_of(state)() if state.timestamp.batch else None)
    trainer(callbacks=[listens, calls], microbatch_size=4).fit()
    step = ["before_train_batch", *inner, *inner, "after_train_batch"]
    assert events == [*step, *step, *inner, *inner]


OUTSIDE = ["batch_start", "after_backward", "fit_end"]


@pytest.mark.parametrize("event", OUTSIDE)
def test_elsewhere_it_is_refused(event):
    run = trainer(callbacks=at(event, lambda state: closure_of(state)()))
    with pytest.raises(EngineError, match=r"state\.loop\.closure can't be called here .*it is for AFTER_TRAIN_BATCH"):
        run.fit()


@pytest.mark.parametrize("event", ["after_loss", "eval_batch_start"])
def test_neither_the_closure_nor_an_evaluation_calls_it_again(event):
    def call(state):
        if is_inside:
            closure_of(state)()

    def enter(state):
        is_inside.append(True)
        run.eval() if event.startswith("eval") else closure_of(state)()

    is_inside = []
    run = trainer(callbacks=[at(event, call), at("after_train_batch", enter)], eval_dataloader=batches(4))
    with pytest.raises(EngineError, match="it is for AFTER_TRAIN_BATCH"):
        run.fit()


class AddOne(Algorithm):
    """Adds to the inputs while the model has them, and raises in the loss of the second pass."""

    metadata = AlgorithmMetadata(events=("before_forward", "after_forward", "before_loss"), writes=("batch",))

    def __init__(self):
        self.kept = None
        self.passes = 0

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        if event is Event.BEFORE_FORWARD:
            self.passes += 1
            self.kept = state.batch
            state.batch_set_item(0, state.batch_get_item(0) + 1)
            if self.passes == 2:
                state.model.fail = True
        elif event is Event.AFTER_FORWARD:
            state.batch, self.kept = self.kept, None


class Failing(nn.Linear):
    """Raises in its forward pass when asked to, once."""

    fail = False

    def forward(self, x):
        if self.fail:
            self.fail = False
            raise ZeroDivisionError
        return super().forward(x)


def test_an_exception_undoes_pairs_and_allows_another_call():
    batch, algorithm, seen = rows(8), AddOne(), []

    def call(state):
        before = gradients(state)
        with pytest.raises(ZeroDivisionError):
            closure_of(state)()
        seen.append((algorithm.kept, state.batch is batch))
        closure_of(state)()
        seen.append(all(torch.equal(*pair) for pair in zip(before, gradients(state), strict=True)))

    trainer([batch], Failing(4, 3), algorithms=algorithm, callbacks=at("after_train_batch", call)).fit()
    assert seen == [(None, True), True]


def test_buffers_and_random_numbers_move_on_as_in_any_forward_pass():
    """An algorithm that wants those of the first pass puts them back."""
    outputs = []
    callbacks = [
        at("after_train_batch", lambda state: closure_of(state)()),
        at("after_forward", lambda state: outputs.append(state.outputs)),
    ]
    model = net(dropout=0.5)
    trainer([rows(8)], model, callbacks=callbacks).fit()
    assert model[1].num_batches_tracked == 2 and not torch.equal(*outputs)
