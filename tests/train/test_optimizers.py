"""Optimizers and schedulers: given as they are, or made after INIT."""

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau, StepLR

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State, Time
from engine_core.errors import ArgumentError, ArgumentTypeError

from .parts import at, batches, linear, net, same, trainer, writing_down


class ReplaceHead(Algorithm):
    """Surgery: puts another last layer into the net."""

    metadata = AlgorithmMetadata(events=(Event.INIT,))

    def match(self, event: Event, state: State) -> bool:
        return True

    def apply(self, event: Event, state: Any, logger: Logger) -> None:
        state.model[4] = nn.Linear(6, 3)


def rates(made: Any) -> list[float]:
    return [round(group["lr"], 6) for optimizer in made.state.optimizers for group in optimizer.param_groups]


def rates_by_batch(schedulers: Any, *sizes: int, duration: str = "2ep") -> list[float]:
    seen: list[float] = []
    made = trainer(batches(*sizes), max_duration=duration, schedulers=schedulers)
    made.state.callbacks.append(at("batch_end", lambda state: seen.extend(rates(made))))
    made.fit()
    return seen


def test_a_callable_gets_the_parameters_as_they_are_after_init() -> None:
    model = net()
    former = model[4].weight
    before = former.detach().clone()
    made = trainer(model=model, algorithms=ReplaceHead())
    replaced = model[4].weight.detach().clone()
    made.fit()
    assert not same(model[4].weight.detach(), replaced)
    assert same(former.detach(), before)


def test_an_optimizer_made_earlier_trains_what_surgery_put_in_the_place_of_its_parameters() -> None:
    model = net()
    head, body = model[4], model[0]
    optimizer = torch.optim.SGD(
        [{"params": [*head.parameters()], "lr": 0.5}, {"params": [*body.parameters()], "lr": 0.1}]
    )
    trainer(model=model, algorithms=ReplaceHead(), optimizers=optimizer)
    assert [group["params"] for group in optimizer.param_groups] == [[*model[4].parameters()], [*body.parameters()]]
    assert model[4] is not head


class AddLayer(Algorithm):
    metadata = AlgorithmMetadata(events=(Event.INIT,))

    def match(self, event: Event, state: State) -> bool:
        return True

    def apply(self, event: Event, state: Any, logger: Logger) -> None:
        state.model.append(torch.nn.Linear(3, 3))


def test_an_optimizer_made_earlier_trains_what_surgery_added() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = trainer(model=model, algorithms=AddLayer(), optimizers=optimizer)
    added = model[5].weight.detach().clone()
    made.fit()
    assert not torch.equal(model[5].weight, added)


def test_several_optimizers_cannot_share_what_surgery_added() -> None:
    model = net()
    optimizers = [torch.optim.SGD(model[place].parameters(), lr=0.1) for place in (0, 4)]
    with pytest.raises(ArgumentError, match=r"several of them could train the new parameter '5\.weight'"):
        trainer(model=model, algorithms=AddLayer(), optimizers=optimizers)


def test_an_optimizer_of_another_model_is_refused() -> None:
    with pytest.raises(ArgumentError, match="SGD has no parameter of this model; was it made for another one"):
        trainer(optimizers=torch.optim.SGD(net().parameters(), lr=0.1))


def test_an_optimizer_of_the_loss_functions_parameters_alone_is_refused_with_a_way_to_train_them() -> None:
    model, scale = linear(), nn.Parameter(torch.ones(()))
    loss_fn = lambda outputs, targets: scale * nn.functional.cross_entropy(outputs, targets)  # noqa: E731
    apart = [torch.optim.SGD(parameters, lr=0.1) for parameters in (model.parameters(), [scale])]
    with pytest.raises(
        ArgumentError, match="Parameters of the loss function go into an optimizer together with some of the model"
    ):
        trainer(model=model, loss_fn=loss_fn, optimizers=apart)
    trainer(model=model, loss_fn=loss_fn, optimizers=torch.optim.SGD([*model.parameters(), scale], lr=0.1)).fit()
    assert scale.item() != 1


def test_a_scheduler_of_another_optimizer_is_refused() -> None:
    stray = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(net().parameters(), lr=0.1), 1)
    with pytest.raises(ArgumentError, match="StepLR schedules an optimizer that is not among the Trainer's"):
        trainer(schedulers=stray)


def test_an_algorithm_may_set_the_optimizers_at_init_where_the_trainer_has_none() -> None:
    class BringOptimizer(AddLayer):
        def apply(self, event: Event, state: Any, logger: Logger) -> None:
            state.optimizers = [torch.optim.SGD(state.model.parameters(), lr=0.1)]

    made = trainer(algorithms=BringOptimizer(), optimizers=None)
    made.fit()
    assert made.state.timestamp.batch == 2
    with pytest.raises(ArgumentError, match=r"an algorithm set state\.optimizers at INIT"):
        trainer(algorithms=BringOptimizer())


def test_a_frozen_model_is_refused_before_anything_fires() -> None:
    model, events = net(), list[str]()
    made = trainer(model=model.requires_grad_(False), callbacks=writing_down(events))
    with pytest.raises(ArgumentError, match="no parameter of the optimizers requires a gradient"):
        made.fit()
    assert events == ["init"]


def test_an_algorithm_may_give_an_optimizer_the_new_parameters_itself() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    class Careful(ReplaceHead):
        def apply(self, event: Event, state: Any, logger: Logger) -> None:
            super().apply(event, state, logger)
            optimizer.param_groups[0]["params"] = list(model.parameters())

    before = trainer(model=model, algorithms=Careful(), optimizers=optimizer)
    replaced = model[4].weight.detach().clone()
    before.fit()
    assert not same(model[4].weight.detach(), replaced)


@pytest.mark.filterwarnings("ignore::engine_core.errors.UntrainedParametersWarning")
def test_several_optimizers_all_step() -> None:
    model = net()
    before = [p.detach().clone() for p in model.parameters()]
    pair = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[4].parameters(), lr=0.01)]
    made = trainer(model=model, optimizers=pair)
    made.fit()
    moved = [not same(p.detach(), b) for p, b in zip(model.parameters(), before, strict=True)]
    assert moved == [True, True, False, False, True, True]
    assert rates(made) == [0.1, 0.01]


def test_an_optimizer_and_a_callable_may_be_mixed() -> None:
    model = net()
    made = trainer(model=model, optimizers=[torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam])
    assert [type(optimizer).__name__ for optimizer in made.state.optimizers] == ["SGD", "Adam"]


@pytest.mark.parametrize(("interval", "second"), [("1ep", 0.1), ("2ba", 0.05)])
def test_once_an_algorithm_sets_the_learning_rates_no_scheduler_steps(interval: str, second: float) -> None:
    seen: list[float] = []
    halve = functools.partial(StepLR, step_size=1, gamma=0.5)
    made = trainer(batches(4, 4), max_duration="3ep", schedulers=(halve, interval))

    def take_over(state: Any) -> None:
        seen.extend(rates(made))
        state.loop.schedulers_paused = state.timestamp.batch >= 3

    made.state.callbacks.append(at("batch_end", take_over))
    made.fit()
    assert seen == [0.1, second, 0.05, 0.05, 0.05, 0.05]


def test_a_scheduler_steps_each_epoch() -> None:
    halve = functools.partial(StepLR, step_size=1, gamma=0.5)
    assert rates_by_batch(halve, 4, 4) == [0.1, 0.1, 0.05, 0.05]


def test_a_scheduler_in_a_pair_steps_at_its_interval_before_batch_end() -> None:
    halve = functools.partial(StepLR, step_size=1, gamma=0.5)
    assert rates_by_batch((halve, "1ba"), 4, 4) == [0.05, 0.025, 0.0125, 0.00625]
    assert rates_by_batch([(halve, "2ba")], 4, 4) == [0.1, 0.05, 0.05, 0.025]
    assert rates_by_batch([(halve, Time("8sp"))], 4, 4) == [0.1, 0.05, 0.05, 0.025]


def test_several_schedulers_step_at_their_own_intervals() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedulers: list[Any] = [StepLR(optimizer, 1, gamma=0.5), (StepLR(optimizer, 1, gamma=0.1), "3ba")]
    made = trainer(batches(4, 4), model, optimizers=optimizer, schedulers=schedulers, max_duration="2ep")
    made.fit()
    assert rates(made) == [0.0025]
    assert made.state.schedulers == [schedulers[0], schedulers[1][0]]


def test_an_epochs_schedulers_step_before_epoch_end() -> None:
    seen: list[float] = []
    made = trainer(batches(4), schedulers=functools.partial(StepLR, step_size=1, gamma=0.5))
    made.state.callbacks.append(at("epoch_end", lambda state: seen.extend(rates(made))))
    made.fit()
    assert seen == [0.05]


def test_torchs_own_schedule_is_met() -> None:
    cosine = functools.partial(CosineAnnealingLR, T_max=4)
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    theirs, expected = cosine(optimizer), []
    for _ in range(4):
        optimizer.step()
        theirs.step()
        expected.append(round(optimizer.param_groups[0]["lr"], 6))
    assert rates_by_batch((cosine, "1ba"), 4, 4) == expected


SGD = torch.optim.SGD(linear().parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"schedulers": ReduceLROnPlateau(SGD)},
            "schedulers: ReduceLROnPlateau steps on a metric; step it in a callback's eval_end instead",
        ),
        ({"schedulers": StepLR}, "schedulers: StepLR is a class; write StepLR(optimizer, ...)"),
        ({"schedulers": [3]}, "schedulers: 3 has no step(); give torch schedulers, or (scheduler, '1ba')"),
        (
            {"schedulers": (StepLR(SGD, 1), "1.5ba")},
            "schedulers: the interval: '1.5ba': batches are counted in whole numbers",
        ),
        (
            {"optimizers": "adam"},
            (
                "optimizers: 'adam' is not a torch.optim.Optimizer; give one, or a callable that makes one from "
                "parameters, as functools.partial(torch.optim.SGD, lr=0.1)"
            ),
        ),
        (
            {"optimizers": torch.optim.LBFGS(linear().parameters())},
            "optimizers: LBFGS runs the model itself, several times a step; the loop runs it once",
        ),
    ],
    ids=["plateau", "class", "number", "half a batch", "name", "LBFGS"],
)
def test_what_cannot_work_is_refused_before_anything_starts(settings: dict[str, Any], message: str) -> None:
    events: list[str] = []
    with pytest.raises((ArgumentError, ArgumentTypeError)) as error:
        trainer(callbacks=writing_down(events), **settings)
    assert str(error.value) == message
    assert events == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"optimizers": lambda parameters: list(parameters)[:0]},
            (
                "optimizers: [] is not a torch.optim.Optimizer; give one, or a callable that makes one from "
                "parameters, as functools.partial(torch.optim.SGD, lr=0.1)"
            ),
        ),
        (
            {"optimizers": None, "schedulers": functools.partial(StepLR, step_size=1)},
            "schedulers: a callable gets the optimizer, and there are 0; make optimizers and schedulers yourself",
        ),
        (
            {"schedulers": ReduceLROnPlateau},
            "schedulers: ReduceLROnPlateau is a class; write ReduceLROnPlateau(optimizer, ...)",
        ),
    ],
    ids=["callable", "no optimizer", "plateau's class"],
)
def test_what_a_callable_makes_is_checked_too(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError)) as error:
        trainer(**settings)
    assert str(error.value) == message


class Bags(nn.Module):
    """Sums rows of an embedding, some of them twice."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(10, 4, sparse=sparse, mode="sum"), linear()

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.head(self.bag(inputs.abs().mul(3).long().clamp(max=9)))


@pytest.mark.parametrize("settings", [{}, {"microbatch_size": 3}, {"precision": "amp_bf16"}], ids=str)
def test_sparse_gradients_are_clipped_as_dense_ones(settings: dict[str, Any]) -> None:
    def trained(*, sparse: bool) -> tuple[list[float], dict[str, Any]]:
        with torch.random.fork_rng():
            torch.manual_seed(2)
            model, norms = Bags(sparse=sparse), list[float]()
        note = at("after_train_batch", lambda state: norms.append(state.gradient_norm.item()))
        with trainer(model=model, grad_clip_norm=0.1, callbacks=[note], **settings) as run:
            run.fit()
        return norms, model.state_dict()

    (norms, weights), (expected, dense) = trained(sparse=True), trained(sparse=False)
    assert norms == pytest.approx(expected, rel=1e-5) and min(norms) > 0.1
    for name, value in dense.items():
        torch.testing.assert_close(weights[name], value)
