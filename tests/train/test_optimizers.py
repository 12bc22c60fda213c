"""Optimizers and schedulers: given as they are, or made after INIT."""

import functools
import re

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from engine_core import Time
from engine_core.errors import ArgumentError, ArgumentTypeError

from .parts import acting, at, batches, linear, net, same, trainer, writing_down


def replace_head(event, state):
    state.model[4] = nn.Linear(6, 3)


def add_layer(event, state):
    state.model.append(nn.Linear(3, 3))


def rates(made):
    return [round(group["lr"], 6) for optimizer in made.state.optimizers for group in optimizer.param_groups]


def rates_by_batch(schedulers):
    """Return the rates at BATCH_END and EPOCH_END of two epochs of two batches."""
    seen = []
    notes = [at(event, lambda state: seen.extend(rates(made))) for event in ("batch_end", "epoch_end")]
    made = trainer(batches(4, 4), max_duration="2ep", schedulers=schedulers, callbacks=notes)
    made.fit()
    return seen


def test_a_callable_gets_the_parameters_as_they_are_after_init_and_an_optimizer_made_earlier_trains_what_is_added():
    made = trainer(model=net(), algorithms=acting(replace_head, "init"))
    assert made.state.optimizers[0].param_groups[0]["params"] == [*made.state.model.parameters()]
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = trainer(model=model, algorithms=acting(add_layer, "init"), optimizers=optimizer)
    added = model[5].weight.detach().clone()
    made.fit()
    assert not torch.equal(model[5].weight, added)


def test_an_optimizer_of_the_loss_functions_parameters_alone_is_refused_with_a_way_to_train_them():
    model, scale = linear(), nn.Parameter(torch.ones(()))
    loss_fn = lambda outputs, targets: scale * nn.functional.cross_entropy(outputs, targets)  # noqa: E731
    apart = [torch.optim.SGD(parameters, lr=0.1) for parameters in (model.parameters(), [scale])]
    says = "Parameters of the loss function go into an optimizer together with some of the model"
    with pytest.raises(ArgumentError, match=says):
        trainer(model=model, loss_fn=loss_fn, optimizers=apart)
    trainer(model=model, loss_fn=loss_fn, optimizers=torch.optim.SGD([*model.parameters(), scale], lr=0.1)).fit()
    assert scale.item() != 1


def test_an_algorithm_may_set_the_optimizers_at_init_where_the_trainer_has_none():
    def bring(event, state):
        state.optimizers = [torch.optim.SGD(state.model.parameters(), lr=0.1)]

    made = trainer(algorithms=acting(bring, "init"), optimizers=None)
    made.fit()
    assert made.state.timestamp.batch == 2
    with pytest.raises(ArgumentError, match=r"an algorithm set state\.optimizers at INIT"):
        trainer(algorithms=acting(bring, "init"))


def test_a_frozen_model_is_refused_before_anything_fires():
    model, events = net(), []
    made = trainer(model=model.requires_grad_(False), callbacks=writing_down(events))
    with pytest.raises(ArgumentError, match="no parameter of the optimizers requires a gradient"):
        made.fit()
    assert events == ["init"]


@pytest.mark.filterwarnings("ignore::engine_core.errors.UntrainedParametersWarning")
def test_several_optimizers_all_step_whether_made_or_to_be_made():
    model = net()
    before = [p.detach().clone() for p in model.parameters()]
    pair = [torch.optim.SGD(model[0].parameters(), lr=0.1), lambda _: torch.optim.Adam(model[4].parameters(), lr=0.01)]
    made = trainer(model=model, optimizers=pair)
    made.fit()
    moved = [not same(p.detach(), b) for p, b in zip(model.parameters(), before, strict=True)]
    assert moved == [True, True, False, False, True, True]
    assert rates(made) == [0.1, 0.01]


def test_a_scheduler_steps_at_its_interval_before_batch_end_or_epoch_end():
    halve = functools.partial(StepLR, step_size=1, gamma=0.5)
    assert rates_by_batch(halve) == [0.1, 0.1, 0.05, 0.05, 0.05, 0.025]
    assert rates_by_batch((halve, "1ba")) == [0.05, 0.025, 0.025, 0.0125, 0.00625, 0.00625]
    of_two = [0.1, 0.05, 0.05, 0.05, 0.025, 0.025]
    assert rates_by_batch([(halve, "2ba")]) == rates_by_batch([(halve, Time("8sp"))]) == of_two


def test_once_an_algorithm_sets_the_learning_rates_no_scheduler_steps():
    seen = []

    def take_over(state):
        seen.extend(rates(made))
        state.loop.schedulers_paused = state.timestamp.batch >= 3

    halve = functools.partial(StepLR, step_size=1, gamma=0.5)
    made = trainer(batches(4, 4), max_duration="3ep", schedulers=(halve, "2ba"), callbacks=at("batch_end", take_over))
    made.fit()
    assert seen == [0.1, 0.05, 0.05, 0.05, 0.05, 0.05]


SGD = torch.optim.SGD(linear().parameters(), lr=0.1)
GIVE_ONE = (
    "is not a torch.optim.Optimizer; give one, or a callable that makes one from parameters, as functools.partial("
)
AT_ONCE = [
    (
        {"schedulers": ReduceLROnPlateau(SGD)},
        "schedulers: ReduceLROnPlateau steps on a metric; step it in a callback's",
    ),
    ({"schedulers": StepLR}, "schedulers: StepLR is a class; write StepLR(optimizer, ...)"),
    ({"schedulers": [3]}, "schedulers: 3 has no step(); give torch schedulers, or (scheduler, '1ba')"),
    (
        {"schedulers": (StepLR(SGD, 1), "1.5ba")},
        "schedulers: the interval: '1.5ba': batches are counted in whole numbers",
    ),
    ({"optimizers": "adam"}, f"optimizers: 'adam' {GIVE_ONE}"),
    ({"optimizers": SGD}, "optimizers: SGD has no parameter of this model; was it made for another one"),
    (
        {"optimizers": torch.optim.LBFGS(linear().parameters())},
        "optimizers: LBFGS runs the model itself, several times",
    ),
]
ONCE_MADE = [
    ({"optimizers": lambda parameters: list(parameters)[:0]}, f"optimizers: [] {GIVE_ONE}"),
    (
        {"optimizers": None, "schedulers": functools.partial(StepLR, step_size=1)},
        "schedulers: a callable gets the optimizer, ",
    ),
    ({"schedulers": StepLR(SGD, 1)}, "schedulers: StepLR schedules an optimizer that is not among the Trainer's"),
]


@pytest.mark.parametrize(("settings", "message"), [*AT_ONCE, *ONCE_MADE])
def test_what_cannot_work_is_refused_before_anything_starts_or_once_it_is_made(settings, message):
    events = []
    with pytest.raises((ArgumentError, ArgumentTypeError), match=f"^{re.escape(message)}"):
        trainer(callbacks=writing_down(events), **settings)
    assert events == ([] if (settings, message) in AT_ONCE else ["init"])


class Bags(nn.Module):
    """Sums rows of an embedding, some of them twice."""

    def __init__(self, *, sparse):
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(10, 4, sparse=sparse, mode="sum"), linear()

    def forward(self, inputs):
        return self.head(self.bag(inputs.abs().mul(3).long().clamp(max=9)))


@pytest.mark.parametrize("settings", [{}, {"microbatch_size": 3}, {"precision": "amp_bf16"}], ids=str)
def test_sparse_gradients_are_clipped_as_dense_ones(settings):
    def trained(*, sparse):
        with torch.random.fork_rng():
            torch.manual_seed(2)
            model, norms = Bags(sparse=sparse), []
        note = at("after_train_batch", lambda state: norms.append(state.gradient_norm.item()))
        with trainer(model=model, grad_clip_norm=0.1, callbacks=[note], **settings) as run:
            run.fit()
        return norms, model.state_dict()

    (norms, weights), (expected, dense) = trained(sparse=True), trained(sparse=False)
    assert norms == pytest.approx(expected, rel=1e-5) and min(norms) > 0.1
    for name, value in dense.items():
        torch.testing.assert_close(weights[name], value)
