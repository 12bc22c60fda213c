"""SWA's own learning rate: from the start of averaging on it takes the place of the schedulers."""

from pathlib import Path
from typing import Any

import optim_parts
import pytest
import torch
from optim_parts import pause_after, same
from parts import batches
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import SWALR

from engine_core import Callback, Engine, Event, Logger, State, Trainer
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from optim_plugin import SWA


class Rates(Callback):
    """The learning rates that each batch is trained with."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def after_train_batch(self, state: Any, logger: Logger) -> None:
        self.seen.append([round(float(group["lr"]), 10) for group in state.optimizers[0].param_groups])


def halving(optimizer: torch.optim.Optimizer) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: 0.5**step)


def make_trainer(swa: SWA, *callbacks: Any, lrs: tuple[float, ...] = (0.8,), **settings: Any) -> Trainer:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    layers = (model[0], model[2])
    groups = [{"params": list(layer.parameters()), "lr": lr} for layer, lr in zip(layers, lrs * 2, strict=False)]
    given = {"model": model, "data": batches(8, 8, 8, 8, 8), "max_duration": "4ep", **settings}
    return optim_parts.make_trainer(swa, *callbacks, optimizers=torch.optim.SGD(groups), **given)


def rates(swa: SWA, **settings: Any) -> list[float]:
    recorder = Rates()
    with make_trainer(swa, recorder, **settings) as trainer:
        trainer.fit()
    return [seen[0] for seen in recorder.seen]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"start": 0.5, "anneal": "4ba"}, [0.8] * 5 + [0.4] * 6 + [0.325, 0.25, 0.175] + [0.1] * 6),
        ({"start": 0.5}, [0.8] * 5 + [0.4] * 5 + [round(0.4 - 0.03 * k, 10) for k in range(10)]),
        ({"start": 0.95, "anneal": "2ep"}, [0.8] * 5 + [0.4] * 5 + [0.2] * 5 + [0.1] * 5),
        ({"start": 0, "anneal": "2ba"}, [0.8, 0.45] + [0.1] * 18),
        ({"start": 0.5, "swa_lr": None}, [0.8] * 5 + [0.4] * 5 + [0.2] * 5 + [0.1] * 5),
    ],
    ids=str,
)
def test_from_start_on_the_rate_goes_straight_to_its_own_and_the_scheduler_rests(
    arguments: dict[str, Any], expected: list[float]
) -> None:
    """20 batches in 4 epochs; the scheduler halves the rate after each epoch, as the last case shows."""
    assert rates(SWA(**{"swa_lr": 0.1, **arguments}), schedulers=halving) == expected


def test_a_scheduler_that_steps_each_batch_rests_too_and_groups_go_from_their_own_rates() -> None:
    recorder, swa = Rates(), SWA(start=0.5, swa_lr=0.1, anneal="2ba")
    with make_trainer(swa, recorder, lrs=(0.8, 0.4), max_duration="8ba", schedulers=(halving, "2ba")) as trainer:
        trainer.fit()
        assert trainer.state.schedulers[0].last_epoch == 2
    later = [[0.2, 0.1], [0.15, 0.1], [0.1, 0.1], [0.1, 0.1]]
    assert recorder.seen == [[0.8, 0.4], [0.8, 0.4], [0.4, 0.2], [0.4, 0.2], *later]


def test_it_is_torchs_swalr_stepped_after_each_batch() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.8)
    schedule, expected = SWALR(optimizer, swa_lr=0.05, anneal_epochs=7, anneal_strategy="linear"), []
    for _ in range(20):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates(SWA(start=0, swa_lr=0.05, anneal="7ba")) == pytest.approx(expected)


def test_a_rate_that_is_a_tensor_stays_the_same_tensor() -> None:
    model, lr = nn.Linear(4, 3), torch.tensor(0.8)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    swa = SWA(start=0, swa_lr=0.1, anneal="2ba")
    with optim_parts.make_trainer(swa, model=model, optimizers=optimizer) as trainer:
        trainer.fit()
    assert optimizer.param_groups[0]["lr"] is lr and lr.item() == pytest.approx(0.1)


@pytest.mark.parametrize("stop", [9, 10, 12, 15])
def test_a_run_that_is_resumed_has_the_same_rates_weights_and_average(tmp_path: Path, stop: int) -> None:
    """Before the start, at it, on the way, and at the end of an epoch on the way."""

    def run(folder: str, *callbacks: Any, **settings: Any) -> tuple[SWA, Any, list[list[float]]]:
        swa, recorder = SWA(start=0.5, swa_lr=0.1, anneal="7ba"), Rates()
        saver = CheckpointSaver(tmp_path / folder, interval="100ep")
        with make_trainer(swa, recorder, saver, *callbacks, schedulers=halving, **settings) as trainer:
            trainer.fit()
        return swa, trainer.state, recorder.seen

    whole, state, expected = run("whole")
    _, _, first = run("parts", pause_after(stop))
    resumed, other, second = run("parts", load_path=tmp_path / "parts")
    assert first + second == expected
    assert same(state.model.state_dict(), other.model.state_dict())
    assert same(whole.averaged_state_dict(), resumed.averaged_state_dict())
    assert other.schedulers[0].state_dict()["last_epoch"] == state.schedulers[0].last_epoch == 1


def test_an_instance_in_a_second_run_starts_from_that_runs_rate() -> None:
    swa = SWA(start=0.5, swa_lr=0.1, anneal="2ba")
    assert rates(swa, max_duration="6ba") == [0.8, 0.8, 0.8, 0.8, 0.45, 0.1]
    assert swa.state_dict()["annealing"] == {"begun": 3, "rates": [0.8, 0.8]}
    recorder = Rates()
    with make_trainer(swa, recorder, lrs=(0.4,), max_duration="6ba") as trainer:
        trainer.fit("1ba")
        assert swa.state_dict() == {}
        trainer.fit()
    assert [seen[0] for seen in recorder.seen] == [0.4, 0.4, 0.4, 0.4, 0.25, 0.1]


def test_in_a_loop_without_a_trainer_state_says_that_schedulers_rest() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.8)
    state = State(model=nn.Linear(1, 1), optimizers=optimizer, max_duration="4ba", algorithms=[SWA(0.5, swa_lr=0.1)])
    seen = []
    with Engine(state, Logger()) as engine:
        for _ in range(4):
            state.timestamp = state.timestamp.to_next_batch()
            engine.run_event(Event.BATCH_END)
            seen.append((state.loop.schedulers_paused, round(optimizer.param_groups[0]["lr"], 10)))
    assert seen == [(False, 0.8), (True, 0.8), (True, 0.73), (True, 0.66)]


def test_rolled_back_to_before_the_start_it_begins_again_at_the_rates_of_that_moment() -> None:
    optimizer, swa = torch.optim.SGD([torch.zeros(1)], lr=0.8), SWA(0, swa_lr=0.1, anneal="2ba")
    state, seen = State(model=nn.Linear(1, 1), optimizers=optimizer, max_duration="9ba", algorithms=[swa]), []
    with Engine(state, Logger()) as engine:
        for batch in range(5):
            if batch == 2:
                swa.load_state_dict({})
            engine.run_event(Event.BATCH_END)
            seen.append(round(optimizer.param_groups[0]["lr"], 10))
            state.timestamp = state.timestamp.to_next_batch()
    assert seen == [0.8, 0.45, 0.45, 0.275, 0.1]


@pytest.mark.parametrize(("start", "count"), [(0, 2), (0.5, 0)])
def test_any_number_of_optimizers_but_one_is_refused_with_the_first_batch(start: float, count: int) -> None:
    model = nn.Linear(4, 3)
    state = State(model=model, max_duration="4ep", algorithms=[SWA(start, swa_lr=0.1)], batch=batches(8)[0])
    state.optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(count)]
    with (
        Engine(state, Logger()) as engine,
        pytest.raises(ValueError, match=rf"swa_lr=0\.1 .* State has {count}: leave"),
    ):
        for event in (Event.FIT_START, Event.AFTER_DATALOADER):
            engine.run_event(event)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"swa_lr": 0}, ValueError, r"swa_lr=0 has to be within \(0, inf\): a learning rate"),
        ({"swa_lr": "0.1"}, TypeError, "swa_lr='0.1'"),
        ({"swa_lr": 0.1, "anneal": "10sp"}, ValueError, "anneal='10sp': learning rates change after whole epochs"),
        ({"swa_lr": 0.1, "anneal": "0.1dur"}, ValueError, "anneal: give it in ep"),
        ({"swa_lr": 0.1, "anneal": "0ba"}, ValueError, "anneal has to be positive"),
        ({"anneal": "5ba"}, ValueError, "anneal='5ba' has no learning rate to reach: give swa_lr too"),
    ],
    ids=str,
)
def test_impossible_arguments_are_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SWA(**arguments)


@pytest.mark.parametrize(
    ("annealing", "message"),
    [
        ([], "has to have 'begun' and 'rates'"),
        ({"begun": "3", "rates": [0.1]}, "begun='3'"),
        ({"begun": -3, "rates": [0.1]}, "begun=-3"),
        ({"begun": 3, "rates": 0.1}, "rates=0.1"),
        ({"begun": 3, "rates": ["x"]}, "rates='x'"),
    ],
    ids=str,
)
def test_a_state_that_is_not_its_own_is_refused_and_nothing_taken(annealing: Any, message: str) -> None:
    swa = SWA(swa_lr=0.1)
    swa.load_state_dict({"annealing": {"begun": 2, "rates": [0.4]}})
    with pytest.raises((ValueError, TypeError), match=message):
        swa.load_state_dict({"annealing": annealing})
    assert swa.state_dict() == {"annealing": {"begun": 2, "rates": [0.4]}}
