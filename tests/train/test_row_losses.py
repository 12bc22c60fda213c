"""`state.row_losses`: computed once for all who ask, and never those of something that has changed since."""

import copy
import functools
import gc
import pickle
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from engine_core import Batches, Loss, Objective, State
from engine_core.errors import ArgumentError, ArgumentTypeError

from .parts import acting, batches, linear, same, trainer


class Counting(Objective):
    """Counts how often it is asked for the losses of rows."""

    asked = 0

    def row_losses(self, model, outputs, batch):
        self.asked += 1
        return super().row_losses(model, outputs, batch)


@pytest.mark.parametrize("size", [None, 3])
def test_all_who_ask_in_a_microbatch_get_one_tensor_and_the_step_is_the_plain_one(size):
    def run(*events):
        found = []
        asking = [acting(lambda event, state: found.append((state, state.row_losses())), event) for event in events]
        objective, how = Counting(nn.CrossEntropyLoss()), {"microbatch_size": size, "max_duration": "1ep"}
        model = linear()
        with trainer(None, model, loss_fn=None, objective=objective, algorithms=asking, **how) as made:
            made.fit()
        return found, objective.asked, model.state_dict()

    parts = sum(-(-8 // (size or 8)) for _ in batches(8, 8))
    found, asked, weights = run("after_forward", "after_loss", "after_backward")
    assert (len(found), asked) == (3 * parts, parts)
    for one, *others in zip(*[iter(losses for _, losses in found)] * 3, strict=True):
        assert all(other is one for other in others)
        assert (one.dtype, one.requires_grad, one.is_inference()) == (torch.float32, False, False)
    assert same(weights, run()[2])


class Scaled(nn.Module):
    """A loss with a setting, a parameter and a list."""

    def __init__(self):
        super().__init__()
        self.power, self.shifts, self.scale = 1, [0.5], nn.Parameter(torch.ones(()))

    def forward(self, outputs, targets, reduction="mean"):
        rows = self.scale * F.cross_entropy(outputs, targets, reduction="none") ** self.power + sum(self.shifts)
        return rows if reduction == "none" else rows.mean()


class Tagger(nn.Linear):
    """A model that has the loss, which depends on its weights."""

    def loss(self, outputs, batch, reduction="mean"):
        rows = F.cross_entropy(outputs, batch[1], reduction="none") + self.weight.square().sum()
        return rows if reduction == "none" else rows.mean()


def made_by_closure():
    scales = [1.0]

    def loss(outputs, targets, reduction="mean"):
        rows = scales[0] * F.cross_entropy(outputs, targets, reduction="none")
        return rows if reduction == "none" else rows.mean()

    return loss, scales


class Weighing(Objective):
    """One with state of its own."""

    share = 1.0

    def row_losses(self, model, outputs, batch):
        return self.share * super().row_losses(model, outputs, batch)


LOSSES = {
    "function": lambda: Objective(F.cross_entropy),
    "module": lambda: Objective(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))),
    "partial": lambda: Objective(functools.partial(F.cross_entropy, label_smoothing=0.1)),
    "own module": lambda: Objective(Scaled()),
    "closure": lambda: Objective(made_by_closure()[0]),
    "model": Objective,
    "own objective": lambda: Weighing(F.cross_entropy),
}


def another_loss(state, by):
    """Let the loss differ in place, whatever it is."""
    loss_fn, objective = state.loss_fn, state.objective
    if isinstance(objective, Weighing):
        objective.share += by
    elif loss_fn is None:
        with torch.no_grad():
            state.model.weight.add_(by)
    elif isinstance(loss_fn, Scaled):
        loss_fn.power += by
        loss_fn.shifts.append(by)
        with torch.no_grad():
            loss_fn.scale.add_(by)
    elif isinstance(loss_fn, nn.Module):
        loss_fn.weight.add_(by)
    elif isinstance(loss_fn, functools.partial):
        loss_fn.keywords["label_smoothing"] += 0.01
    elif loss_fn.__closure__:
        loss_fn.__closure__[0].cell_contents[0] += by
    else:
        state.loss_fn = functools.partial(loss_fn, label_smoothing=0.2)


def swapped_targets(state):
    state.batch[1].copy_((state.batch[1] + 1) % 3)


def outputs_in_place(state):
    with torch.no_grad():
        state.outputs[1:].mul_(1.5)


def another_objective(state):
    state.objective = Weighing(state.loss_fn)
    state.objective.share = 0.7


def a_part(state):
    state.batch, state.outputs = state.batches.part(state.batch, slice(0, 4)), state.outputs[:4]


def half(state):
    state.precision, state.outputs = "amp_bf16", state.outputs.bfloat16()


CHANGES = {
    "outputs": lambda s: setattr(s, "outputs", s.outputs * 2),
    "outputs in place": outputs_in_place,
    "targets": lambda s: s.batch_set_item(1, (s.batch[1] + 1) % 3),
    "targets in place": swapped_targets,
    "loss": lambda s: setattr(s, "loss_fn", Scaled()),
    "loss in place": lambda s: another_loss(s, 0.25),
    "objective": another_objective,
    "microbatch": a_part,
    "targets elsewhere": lambda s: setattr(s.objective, "targets", 2),
    "precision": half,
    "what came out": lambda s: s.row_losses().zero_(),
}


@pytest.mark.parametrize("kind", LOSSES)
@settings(max_examples=10)
@given(st.permutations([*CHANGES]))
def test_after_any_change_they_are_those_that_the_objective_computes_now(kind, changes):
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    state = State(model=Tagger(4, 3), objective=LOSSES[kind](), batch=(x, y, (y + 2) % 3))
    state.outputs = state.model(x)
    for change in [None, *changes]:
        if change is not None:
            CHANGES[change](state)
        shared = state.row_losses()
        assert state.row_losses() is shared
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            outputs = state.outputs.float()
            assert torch.equal(shared, state.objective.row_losses(state.model, outputs, state.batch).float())


def of(objective, batch=None, **fields):
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    state = State(model=(model := nn.Linear(4, 3)), objective=objective, batch=batch or (x, y), **fields)
    state.outputs = model(x)
    return state


def test_what_a_loss_counts_when_it_is_asked_does_not_make_it_another():
    calls = []

    def loss(outputs, targets, reduction="mean"):
        calls.append(reduction)
        return F.cross_entropy(outputs, targets, reduction=reduction)

    state = of(Objective(loss))
    assert state.row_losses() is state.row_losses()
    assert calls == ["none"]


@pytest.mark.parametrize("scale", [np.ones(1), torch.Generator(), memoryview(b"1")])
def test_nothing_is_shared_where_what_a_loss_holds_cant_be_seen(scale):
    objective = Counting(F.cross_entropy)
    objective.held = scale
    state = of(objective)
    state.row_losses()
    state.row_losses()
    assert objective.asked == 2


def test_no_graph_outlives_its_step():
    state = of(Objective(F.cross_entropy))
    state.row_losses()
    outputs = weakref.ref(state.outputs)
    state.outputs = None
    gc.collect()
    assert outputs() is None


def test_copies_have_none_of_the_originals_and_can_be_pickled():
    state = of(Objective(nn.CrossEntropyLoss()), extra={})
    losses = state.row_losses()
    for other in (copy.deepcopy(state.objective.shared_rows), pickle.loads(pickle.dumps(state.objective.shared_rows))):
        found = other.of(state)
        assert found is not losses
        assert torch.equal(found, losses)


class Wrong(Objective):
    def row_losses(self, model, outputs, batch):
        return self.given


class Own(Objective):
    def loss(self, model, outputs, batch):
        return Loss(outputs.sum(), len(outputs))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (torch.zeros(6, 4), ArgumentError, r"Wrong.row_losses gave shape \(6, 4\), not \(6,\), a loss for each row"),
        ([0.0], ArgumentTypeError, r"Wrong.row_losses gave a list, not a tensor of shape \(6,\)"),
        (None, ArgumentError, "Own.loss gives one loss for all rows.*: override Own.row_losses"),
    ],
)
def test_what_has_no_loss_for_each_row_is_refused(given, error, message):
    objective = Own(F.mse_loss) if given is None else Wrong(F.cross_entropy)
    objective.given = given
    with pytest.raises(error, match=message):
        of(objective).row_losses()


def test_rows_are_those_of_the_runs_batches():
    state = of(Objective(F.cross_entropy), batches=Batches(count=lambda batch: 3))
    with pytest.raises(ArgumentError, match=r"for 3 rows"):
        state.row_losses()
