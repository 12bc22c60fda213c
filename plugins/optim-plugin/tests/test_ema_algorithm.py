"""EMA in a run: when it starts, is updated, is in the model, and what it refuses."""

from typing import Any

import pytest
import torch
from optim_parts import Recorder, make_trainer, same, weights_of
from parts import at, batches, net
from torch import nn

from engine_core import Algorithm, Engine, Event, Logger, State
from engine_core.errors import EngineError
from optim_plugin import EMA, SWA, ema_update, start_average


def test_a_run_is_the_functional_form_in_a_loop() -> None:
    """Each batch, from the weights after the first, BatchNorm's statistics too; the decay warms up."""
    ema, recorder, oracle = EMA(decay=0.8), Recorder(), net()
    with make_trainer(ema, recorder) as trainer:
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
    [("3ba", [2, 5]), ("1ep", [3, 7]), ("20sp", [2, 4, 7])],
)
def test_it_moves_on_when_an_interval_has_passed(interval: str, updates: list[int]) -> None:
    ema, recorder = EMA(decay=0.5, update_interval=interval, warmup=False), Recorder()
    with make_trainer(ema, recorder) as trainer:
        trainer.fit()
    expected = recorder.steps[0]["0.weight"]
    for step in updates:
        expected = expected.lerp(recorder.steps[step]["0.weight"], 0.5)
    assert torch.equal(ema.averaged_state_dict()["0.weight"], expected)


def test_evaluation_sees_the_average_and_training_its_own_weights() -> None:
    """Two loaders, two pairs of events."""
    ema, recorder = EMA(decay=0.5), Recorder()
    loaders = {"a": batches(8), "b": batches(8)}
    with make_trainer(ema, recorder, max_duration="1ep", eval_dataloader=loaders) as trainer:
        trainer.fit()
    assert len(recorder.evaluated) == len(recorder.left) == 2
    assert all(same(seen, ema.averaged_state_dict()) for seen in recorder.evaluated)
    assert all(same(left, recorder.steps[-1]) for left in recorder.left)


def test_before_any_fit_weights_are_evaluated_as_they_are() -> None:
    ema, recorder = EMA(), Recorder()
    with make_trainer(ema, recorder) as trainer:
        before = weights_of(trainer.state)
        trainer.eval(batches(8))
    assert same(recorder.evaluated[0], before)
    assert ema.averaged_state_dict() is None


def broken(good: int) -> Any:
    """Return some good batches, then one that fails in the model."""
    return [*batches(*[8] * good), (torch.ones(8, 5), torch.zeros(8, dtype=torch.long))]


@pytest.mark.parametrize("good", [0, 2])
def test_an_evaluation_by_hand_uses_the_average_and_leaves_the_weights_bit_equal_also_where_it_raises(
    good: int,
) -> None:
    ema, recorder = EMA(decay=0.5), Recorder()
    with make_trainer(ema, recorder) as trainer:
        trainer.fit()
        before = weights_of(trainer.state)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            trainer.eval(broken(good))
        assert same(weights_of(trainer.state), before)
        trainer.eval(batches(8))
    assert same(recorder.evaluated[-1], ema.averaged_state_dict()) and not same(recorder.evaluated[-1], before)
    assert same(weights_of(trainer.state), before)


def test_an_evaluation_in_the_middle_of_a_step_changes_nothing() -> None:
    ends = []
    for callbacks in ([], [at("after_forward", lambda state: trainer.eval(batches(8)))]):
        with make_trainer(EMA(decay=0.5), *callbacks) as trainer:
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
    with make_trainer(used, recorder) as trainer:
        before = weights_of(trainer.state)
        trainer.eval(batches(8))
    assert same(recorder.evaluated[0], before)


def test_a_saved_average_is_evaluated_without_any_fit() -> None:
    ema, fresh, recorder = EMA(decay=0.5), EMA(decay=0.5), Recorder()
    with make_trainer(ema) as trainer:
        trainer.fit()
    fresh.load_state_dict(ema.state_dict())
    assert same(fresh.averaged_state_dict(), ema.averaged_state_dict())
    with make_trainer(fresh, recorder) as trainer:
        trainer.eval(batches(8))
    assert same(recorder.evaluated[0], ema.averaged_state_dict())


def replace_weight(model: Any) -> None:
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())


def lose_buffer(model: Any) -> None:
    model[1].running_mean = None


def grow(model: Any) -> None:
    model[0].weight.data = torch.zeros(9, 4)


def replace_norm(model: Any) -> None:
    """New statistics for the same weight and bias."""
    norm = nn.BatchNorm1d(6)
    norm.weight, norm.bias = model[1].weight, model[1].bias
    model[1] = norm


def add_layer(model: Any) -> None:
    model.append(nn.Linear(3, 3))


@pytest.mark.parametrize(
    ("change", "name", "event"),
    [
        (replace_weight, "0.weight", Event.EVAL_START),
        (lose_buffer, "1.running_mean", Event.BATCH_END),
        (grow, "0.weight", Event.BATCH_END),
        (replace_norm, "1.running_mean", Event.EVAL_START),
        (add_layer, "5.weight", Event.EVAL_START),
    ],
)
def test_weights_that_are_replaced_after_the_start_are_refused(change: Any, name: str, event: Event) -> None:
    state = State(model=net(), algorithms=[EMA()])
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.BATCH_END)
        change(state.model)
        state.timestamp = state.timestamp.to_next_batch(8)
        with pytest.raises(EngineError, match=f"'{name}' has another tensor, shape or module than when the average"):
            engine.run_event(event)


def test_a_model_that_is_cast_in_mid_run_keeps_its_average() -> None:
    ema = EMA(decay=0.5)
    with make_trainer(ema) as trainer:
        trainer.fit("2ba")
        trainer.state.model.double()
        trainer.eval([(x.double(), y) for x, y in batches(8)])
    assert trainer.state.model[0].weight.dtype is torch.float64
    assert ema.averaged_state_dict()["0.weight"].dtype is torch.float32


@pytest.mark.parametrize(
    ("pair", "names"),
    [([EMA(), SWA()], ("ema", "swa")), ([SWA(), EMA()], ("ema", "swa")), ([EMA(), EMA()], ("ema", "EMA-2"))],
    ids=["ema, swa", "swa, ema", "ema, ema"],
)
def test_two_averages_in_one_run_are_refused_with_both_names(pair: list[Algorithm], names: tuple[str, str]) -> None:
    with pytest.raises(EngineError, match=r"can't run together .*conflicts='@weight_averaging'") as caught:
        make_trainer(pair)
    assert all(name in str(caught.value) for name in names)
