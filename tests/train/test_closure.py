"""`state.loop.closure` computes the gradients of the batch again, as the step did, and does not disturb the step."""

import pytest
import torch
from torch import nn

from engine_core.errors import EngineError

from .parts import acting, at, batches, linear, net, rows, same, trainer, writing_down


def gradients(state):
    return [parameter.grad.clone() for parameter in state.model.parameters()]


@pytest.mark.parametrize("settings", [{}, {"microbatch_size": 3}, {"grad_clip_norm": 0.01}, {"precision": "amp_bf16"}])
def test_at_the_same_weights_the_gradients_are_the_same(settings):
    seen = []

    def call(state):
        before = gradients(state)
        loss = state.loop.closure()
        seen.append(([before, loss], [gradients(state), state.loss]))

    trainer(callbacks=at("after_train_batch", call), **settings).fit()
    assert [same(*pair) for pair in seen] == [True, True]


def test_the_gradients_are_those_at_the_weights_as_they_are():
    x, y = rows(8)
    model, expected = linear(), linear()
    model.bias.requires_grad = False

    def call(state):
        model.weight.data += 1
        state.loop.closure()

    still = torch.optim.SGD([model.weight], 0)
    trainer([(x, y)], model, callbacks=at("after_train_batch", call), optimizers=still).fit()
    expected.weight.data += 1
    nn.functional.cross_entropy(expected(x), y).backward()
    assert torch.equal(model.weight.grad, expected.weight.grad)


def test_without_a_call_no_event_is_fired_again_and_with_one_those_of_the_microbatches_are():
    events = []
    inner = ["before_forward", "after_forward", "before_loss", "after_loss", "before_backward", "after_backward"]
    listens = writing_down(events, ["before_train_batch", *inner, "after_train_batch"])
    calls = at("after_train_batch", lambda state: state.loop.closure() if state.timestamp.batch else None)
    trainer(callbacks=[listens, calls], microbatch_size=4).fit()
    step = ["before_train_batch", *inner, *inner, "after_train_batch"]
    assert events == [*step, *step, *inner, *inner]


@pytest.mark.parametrize("event", ["batch_start", "after_backward", "fit_end"])
def test_elsewhere_it_is_refused(event):
    run = trainer(callbacks=at(event, lambda state: state.loop.closure()))
    with pytest.raises(EngineError, match=r"state\.loop\.closure can't be called here .*it is for AFTER_TRAIN_BATCH"):
        run.fit()


@pytest.mark.parametrize("event", ["after_loss", "eval_batch_start"])
def test_neither_the_closure_nor_an_evaluation_calls_it_again(event):
    def call(state):
        if is_inside:
            state.loop.closure()

    def enter(state):
        is_inside.append(True)
        run.eval() if event.startswith("eval") else state.loop.closure()

    is_inside = []
    run = trainer(callbacks=[at(event, call), at("after_train_batch", enter)], eval_dataloader=batches(4))
    with pytest.raises(EngineError, match="it is for AFTER_TRAIN_BATCH"):
        run.fit()


class Failing(nn.Linear):
    """Raises in its forward pass when asked to, once."""

    fail = False

    def forward(self, x):
        if self.fail:
            self.fail = False
            raise ZeroDivisionError
        return super().forward(x)


def test_an_exception_undoes_pairs_and_allows_another_call():
    batch, model, kept, seen = rows(8), Failing(4, 3), [], []

    def add_one(event, state):
        if event == "before_forward":
            kept.append(state.batch)
            state.batch_set_item(0, state.batch_get_item(0) + 1)
        elif event == "after_forward":
            state.batch = kept.pop()

    def call(state):
        before, model.fail = gradients(state), True
        with pytest.raises(ZeroDivisionError):
            state.loop.closure()
        seen.append((len(kept), state.batch is batch))
        state.loop.closure()
        seen.append(same(before, gradients(state)))

    adds = acting(add_one, "before_forward", "after_forward", "before_loss", writes=("batch",))
    trainer([batch], model, algorithms=adds, callbacks=at("after_train_batch", call)).fit()
    assert seen == [(0, True), True]


def test_buffers_and_random_numbers_move_on_as_in_any_forward_pass():
    """An algorithm that wants those of the first pass puts them back."""
    outputs, model = [], net(dropout=0.5)
    calls = at("after_train_batch", lambda state: state.loop.closure())
    notes = at("after_forward", lambda state: outputs.append(state.outputs))
    trainer([rows(8)], model, callbacks=[calls, notes]).fit()
    assert model[1].num_batches_tracked == 2 and not torch.equal(*outputs)
