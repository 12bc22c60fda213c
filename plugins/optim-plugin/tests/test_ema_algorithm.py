"""EMA in a run: when it starts, is updated, is in the model, and what it refuses."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Algorithm, Callback, Engine, Event, Logger, State, Trainer
from engine_core.errors import EngineError
from optim_plugin import EMA, SWA, ema_update, start_average


def make_data(batches: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(8, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator)) for _ in range(batches)
    ]


def make_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def make_trainer(algorithms: Any, model: nn.Module | None = None, **settings: Any) -> Trainer:
    model = make_net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    given = {"max_duration": "2ep", "loss_fn": F.cross_entropy, "optimizers": optimizer, "device": "cpu", "seed": 1}
    return Trainer(model, make_data(), algorithms=algorithms, **{**given, **settings})


def weights_of(state: Any) -> dict[str, torch.Tensor]:
    return copy.deepcopy(dict(state.model.state_dict()))


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Recorder(Callback):
    """Keeps the weights at some events."""

    def __init__(self) -> None:
        self.steps: list[dict[str, torch.Tensor]] = []
        self.evaluated: list[dict[str, torch.Tensor]] = []
        self.left: list[dict[str, torch.Tensor]] = []

    def batch_end(self, state: State, logger: Logger) -> None:
        self.steps.append(weights_of(state))

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        self.evaluated.append(weights_of(state))

    def eval_end(self, state: State, logger: Logger) -> None:
        self.left.append(weights_of(state))


def test_a_run_is_the_functional_form_in_a_loop() -> None:
    """Each batch, from the weights after the first, BatchNorm's statistics too; the decay warms up."""
    model, ema, recorder = make_net(), EMA(decay=0.8), Recorder()
    oracle = make_net()
    with make_trainer(ema, model, callbacks=recorder) as trainer:
        trainer.fit()
    oracle.load_state_dict(recorder.steps[0])
    average = start_average(oracle)
    for t, weights in enumerate(recorder.steps[1:]):
        oracle.load_state_dict(weights)
        ema_update(average, oracle, decay=min(0.8, (1 + t) / (10 + t)))
    assert len(recorder.steps) == 8
    assert same(ema.averaged_state_dict(), average)


@pytest.mark.filterwarnings("ignore:the average of ema:UserWarning")
@pytest.mark.parametrize(
    ("interval", "updates"),
    [("3ba", [2, 5]), ("2ba", [1, 3, 5, 7]), ("1ep", [3, 7]), ("20sp", [2, 4, 7]), ("2ep", [7])],
)
def test_it_moves_on_when_an_interval_has_passed(interval: str, updates: list[int]) -> None:
    ema, recorder = EMA(decay=0.5, update_interval=interval, warmup=False), Recorder()
    with make_trainer(ema, callbacks=recorder) as trainer:
        trainer.fit()
    expected = recorder.steps[0]["0.weight"]
    for step in updates:
        expected = expected.lerp(recorder.steps[step]["0.weight"], 0.5)
    assert torch.equal(ema.averaged_state_dict()["0.weight"], expected)


def test_evaluation_sees_the_average_and_training_its_own_weights() -> None:
    """Two loaders, two pairs of events."""
    ema, recorder = EMA(decay=0.5), Recorder()
    loaders = {"a": make_data(1), "b": make_data(1)}
    with make_trainer(ema, callbacks=recorder, max_duration="1ep", eval_dataloader=loaders) as trainer:
        trainer.fit()
    assert len(recorder.evaluated) == len(recorder.left) == 2
    assert all(same(seen, ema.averaged_state_dict()) for seen in recorder.evaluated)
    assert all(same(left, recorder.steps[-1]) for left in recorder.left)


def test_training_is_the_same_with_and_without_it() -> None:
    ends = []
    for algorithms in ([], [EMA(decay=0.5)]):
        with make_trainer(algorithms, eval_dataloader=make_data(1), eval_interval="1ba") as trainer:
            trainer.fit()
        ends.append(weights_of(trainer.state))
    assert same(*ends)


def test_before_any_fit_weights_are_evaluated_as_they_are() -> None:
    ema, recorder = EMA(), Recorder()
    with make_trainer(ema, callbacks=recorder) as trainer:
        before = weights_of(trainer.state)
        trainer.eval(make_data(1))
    assert same(recorder.evaluated[0], before)
    assert ema.averaged_state_dict() is None


def test_an_evaluation_by_hand_uses_the_average() -> None:
    ema, recorder = EMA(decay=0.5), Recorder()
    with make_trainer(ema, callbacks=recorder) as trainer:
        trainer.fit()
        after = weights_of(trainer.state)
        trainer.eval(make_data(1))
    assert same(recorder.evaluated[0], ema.averaged_state_dict())
    assert not same(recorder.evaluated[0], after)
    assert same(weights_of(trainer.state), after)


def broken(batches: int) -> Any:
    """Yield some good batches, then one that fails in the model."""
    yield from make_data(batches)
    yield torch.ones(8, 5), torch.zeros(8, dtype=torch.long)


@pytest.mark.parametrize("good", [0, 2])
def test_an_evaluation_that_raises_leaves_the_weights_bit_equal(good: int) -> None:
    with make_trainer(EMA(decay=0.5)) as trainer:
        trainer.fit()
        before = weights_of(trainer.state)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            trainer.eval(list(broken(good)))
        assert same(weights_of(trainer.state), before)
        trainer.eval(make_data(1))  # and the next one works
    assert same(weights_of(trainer.state), before)


class EvaluateMidStep(Callback):
    """Evaluates between forward and backward."""

    trainer: Trainer

    def after_forward(self, state: State, logger: Logger) -> None:
        self.trainer.eval(make_data(1))


def test_an_evaluation_in_the_middle_of_a_step_changes_nothing() -> None:
    ends = []
    for callbacks in ([], [EvaluateMidStep()]):
        with make_trainer(EMA(decay=0.5), callbacks=callbacks) as trainer:
            EvaluateMidStep.trainer = trainer
            trainer.fit()
        ends.append(weights_of(trainer.state))
    assert same(*ends)


def test_a_second_fit_continues_with_the_average() -> None:
    once, twice = EMA(decay=0.5), EMA(decay=0.5)
    with make_trainer(once) as trainer:
        trainer.fit()
    with make_trainer(twice) as trainer:
        trainer.fit("3ba")
        trainer.fit("5ba")
    assert same(once.averaged_state_dict(), twice.averaged_state_dict())


def test_an_instance_in_a_second_run_begins_again() -> None:
    used = EMA(decay=0.5)
    with make_trainer(used) as trainer:
        trainer.fit()
    recorder = Recorder()
    with make_trainer(used, callbacks=recorder) as trainer:
        before = weights_of(trainer.state)
        trainer.eval(make_data(1))
    assert same(recorder.evaluated[0], before)


def test_a_saved_average_is_evaluated_without_any_fit() -> None:
    ema, fresh, recorder = EMA(decay=0.5), EMA(decay=0.5), Recorder()
    with make_trainer(ema) as trainer:
        trainer.fit()
    fresh.load_state_dict(ema.state_dict())
    assert same(fresh.averaged_state_dict(), ema.averaged_state_dict())
    with make_trainer(fresh, callbacks=recorder) as trainer:
        trainer.eval(make_data(1))
    assert same(recorder.evaluated[0], ema.averaged_state_dict())


def replace_weight(model: Any) -> None:
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())


def lose_weight(model: Any) -> None:
    nn.utils.parametrizations.weight_norm(model[0])


def lose_buffer(model: Any) -> None:
    model[1].running_mean = None


def grow(model: Any) -> None:
    model[0].weight.data = torch.zeros(9, 4)


def replace_norm(model: Any) -> None:
    """New statistics for the same weight and bias."""
    norm = nn.BatchNorm1d(8)
    norm.weight, norm.bias = model[1].weight, model[1].bias
    model[1] = norm


def add_layer(model: Any) -> None:
    model.append(nn.Linear(3, 3))


@pytest.mark.parametrize(
    ("change", "name", "event"),
    [
        (replace_weight, "0.weight", Event.BATCH_END),
        (replace_weight, "0.weight", Event.EVAL_START),
        (lose_weight, "0.weight", Event.BATCH_END),
        (lose_buffer, "1.running_mean", Event.BATCH_END),
        (grow, "0.weight", Event.BATCH_END),
        (replace_norm, "1.running_mean", Event.EVAL_START),
        (add_layer, "4.weight", Event.EVAL_START),
    ],
)
def test_weights_that_are_replaced_after_the_start_are_refused(change: Any, name: str, event: Event) -> None:
    state = State(model=make_net(), algorithms=[EMA()])
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.BATCH_END)
        change(state.model)
        state.timestamp = state.timestamp.to_next_batch(8)
        with pytest.raises(EngineError, match=f"'{name}' has another tensor, shape or module than when the average"):
            engine.run_event(event)


def test_another_model_in_the_same_run_is_refused() -> None:
    state = State(model=make_net(), algorithms=[EMA()])
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.BATCH_END)
        state.model = make_net()
        with pytest.raises(EngineError, match="has another tensor, shape or module"):
            engine.run_event(Event.EVAL_START)


def test_a_model_that_is_cast_in_mid_run_keeps_its_average() -> None:
    ema = EMA(decay=0.5)
    with make_trainer(ema) as trainer:
        trainer.fit("2ba")
        trainer.state.model.double()
        data = [(x.double(), y) for x, y in make_data(1)]
        trainer.eval(data)
    assert trainer.state.model[0].weight.dtype is torch.float64
    assert ema.averaged_state_dict()["0.weight"].dtype is torch.float32


def test_it_may_join_in_mid_run() -> None:
    """No FIT_START then: it starts at the end of the first batch it sees."""
    ema, model = EMA(decay=0.5), nn.Linear(1, 1)
    with Engine(State(model=model, algorithms=[ema]), Logger()) as engine:
        engine.run_event(Event.BATCH_END)
    assert same(ema.averaged_state_dict(), model.state_dict())


@pytest.mark.parametrize(
    ("pair", "names"),
    [([EMA(), SWA()], ("ema", "swa")), ([SWA(), EMA()], ("ema", "swa")), ([EMA(), EMA()], ("ema", "EMA-2"))],
    ids=["ema, swa", "swa, ema", "ema, ema"],
)
def test_two_averages_in_one_run_are_refused_with_both_names(pair: list[Algorithm], names: tuple[str, str]) -> None:
    with pytest.raises(EngineError, match=r"can't run together .*conflicts='@weight_averaging'") as caught:
        make_trainer(pair)
    assert all(name in str(caught.value) for name in names)


@pytest.mark.parametrize("interval", ["0ba", "1dur", "many"])
def test_an_interval_that_cannot_be_counted_is_refused(interval: str) -> None:
    with pytest.raises(ValueError, match=r"update_interval"):
        EMA(update_interval=interval)
