"""`state.loss` from event to event, what replaces it, and gradients of gradients."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Algorithm, AlgorithmMetadata, Event
from engine_core.errors import ArgumentError, ArgumentTypeError

from .parts import Memory, acting, at, batches, linear, rows, trainer


def doubling(event):
    """Return an algorithm that doubles the loss at one event."""
    return acting(lambda _, state: setattr(state, "loss", 2 * state.loss), event)


def gradient(loss_fn=F.cross_entropy, **settings):
    """Return the gradient of the weight after one step."""
    made = trainer(batches(8), loss_fn=loss_fn, **settings)
    made.fit()
    return made.state.model.weight.grad.detach().clone()


def test_it_is_as_returned_at_after_loss_and_one_weighted_scalar_from_before_backward_on():
    def note(event):
        return at(event, lambda state: seen.append(as_numbers(state.loss)))

    seen, events = [], ("after_loss", "before_backward", "after_backward", "batch_end")
    parts = lambda outputs, targets: (outputs.sum() * 0 + 3, outputs.sum() * 0 + 5)  # noqa: E731
    trainer(batches(8), loss_fn=parts, microbatch_size=6, callbacks=[note(event) for event in events]).fit()
    assert seen == [*((3.0, 5.0), 4.0, 4.0) * 2, 8.0]


def as_numbers(loss):
    return tuple(part.item() for part in loss) if isinstance(loss, tuple) else loss.item()


@pytest.mark.parametrize("event", ["after_loss", "before_backward"])
@pytest.mark.parametrize("microbatch_size", [None, 3])
def test_replacing_it_counts(event, microbatch_size):
    memory, plain = Memory(), Memory()
    doubled = gradient(algorithms=doubling(event), microbatch_size=microbatch_size, loggers=memory)
    assert torch.allclose(doubled, 2 * gradient(loggers=plain))
    assert memory.values("train/loss") == [(0, pytest.approx(2 * plain.values("train/loss")[0][1]))]


@pytest.mark.parametrize("size", [None, 3])
def test_state_holds_the_microbatch_only_between_before_and_after_train_batch(size):
    heard = []

    def note(event):
        return at(event, lambda state: heard.append(f"{event} {len(state.batch[0])} {state.batch[0][0, 0] > 0}"))

    data = [(torch.ones(8, 4), torch.zeros(8, dtype=torch.long))]
    noted = [note(event) for event in ("before_train_batch", "before_loss", "after_train_batch", "batch_end")]
    negate = acting(lambda _, state: setattr(state, "batch", (-state.batch[0], state.batch[1])), "before_forward")
    trainer(data, microbatch_size=size, algorithms=negate, callbacks=noted).fit()
    parts = [f"before_loss {n} False" for n in ([8] if size is None else [3, 3, 2])]
    assert heard == ["before_train_batch 8 True", *parts, "after_train_batch 8 True", "batch_end 8 True"]


class PenaliseGradients(Algorithm):
    """Adds the gradient of the squared norm of the gradients, which needs their graph."""

    metadata = AlgorithmMetadata(events=(Event.AFTER_BACKWARD,))
    backwards_create_graph = True

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        parameters = list(state.model.parameters())
        norm = torch.stack([p.grad.pow(2).sum() for p in parameters if p.grad is not None]).sum()
        for parameter, extra in zip(parameters, torch.autograd.grad(norm, parameters), strict=True):
            parameter.grad = parameter.grad + extra


def test_an_algorithm_can_differentiate_twice():
    model = linear()
    inputs, targets = rows(8, seed=0)
    loss = F.cross_entropy(model(inputs), targets)
    first = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    second = torch.autograd.grad(torch.stack([g.pow(2).sum() for g in first]).sum(), list(model.parameters()))
    assert torch.allclose(gradient(algorithms=PenaliseGradients()), first[0] + second[0])


REDUCE = "; reduce it to a scalar, as loss.mean() does"
BAD = {
    "a vector": (lambda o, t: F.cross_entropy(o, t, reduction="none"), f"the loss has shape (8,){REDUCE}"),
    "a number": (lambda o, t: 0.5, "the loss is 0.5 (float); it has to be a scalar tensor"),
    "a bad part": (lambda o, t: {"ce": o.sum(), "l2": o.pow(2)}, f"part 'l2' of the loss has shape (8, 3){REDUCE}"),
    "a number as part": (
        lambda o, t: (o.sum(), 0.1),
        "part '1' of the loss is 0.1 (float); it has to be a scalar tensor",
    ),
    "no part": (lambda o, t: {}, "the loss is an empty dict; it needs at least one scalar tensor"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_loss_that_is_not_a_scalar_is_refused_in_training_and_in_evaluation(kind):
    loss_fn, message = BAD[kind]
    made = trainer(batches(8), loss_fn=loss_fn, eval_dataloader=batches(8))
    for run in (made.fit, made.eval):
        with pytest.raises((ArgumentError, ArgumentTypeError), match=f"^{re.escape(message)}$"):
            run()


def test_gradients_are_clipped_all_together():
    seen = []

    def note(state):
        seen.append(torch.cat([p.grad.flatten() for p in state.model.parameters()]).norm().item())

    model = nn.Sequential(linear(), nn.Linear(3, 3))
    trainer(batches(8), model, grad_clip_norm=0.01, callbacks=at("after_train_batch", note)).fit()
    assert seen == [pytest.approx(0.01, rel=1e-3)]
