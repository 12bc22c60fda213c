"""EMA's warm-up, against TensorFlow's formula in a loop by hand, and its warning of an average that starts too late."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from engine_core import Callback, Engine, Event, Logger, State, Trainer
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.examples.digits import DigitsNet, make_loader
from optim_plugin import EMA


def make_data(batches: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(8, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator)) for _ in range(batches)
    ]


class Recorder(Callback):
    """The weight after each batch; pauses after one of them."""

    def __init__(self, pause: int | None = None) -> None:
        self.pause = pause
        self.steps: list[torch.Tensor] = []

    def batch_end(self, state: Any, logger: Logger) -> None:
        self.steps.append(state.model.weight.detach().clone())
        if state.timestamp.batch == self.pause:
            state.pause_training()


def train(ema: EMA, *callbacks: Any, data: Any = None, **settings: Any) -> EMA:
    """Train for 12 batches of 8 rows, 4 in an epoch."""
    torch.manual_seed(1)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"max_duration": "3ep", "loss_fn": F.cross_entropy, "optimizers": optimizer, "device": "cpu", "seed": 1}
    with Trainer(model, data or make_data(), algorithms=ema, callbacks=callbacks, **{**given, **settings}) as trainer:
        trainer.fit()
    return ema


@pytest.mark.parametrize(
    ("arguments", "decay", "first", "updates"),
    [
        ({}, 0.999, 0, range(1, 12)),
        ({"decay": 0.3}, 0.3, 0, range(1, 12)),
        ({"decay": 0.05}, 0.05, 0, range(1, 12)),
        ({"half_life": "1ba"}, 0.5, 0, range(1, 12)),
        ({"update_interval": "3ba"}, 0.999, 0, [2, 5, 8, 11]),
        ({"decay": 0.3, "ema_start": "5ba"}, 0.3, 4, range(5, 12)),
        ({"ema_start": "1ep", "update_interval": "1ep"}, 0.999, 3, [7, 11]),
    ],
    ids=str,
)
def test_the_decay_is_limited_by_the_number_of_updates_before(
    arguments: Any, decay: float, first: int, updates: Any
) -> None:
    recorder = Recorder()
    average = train(EMA(**arguments), recorder).averaged_state_dict()["weight"]
    expected = recorder.steps[first]
    for t, step in enumerate(updates):
        kept = min(decay, (1 + t) / (10 + t))
        expected = kept * expected + (1 - kept) * recorder.steps[step]
    torch.testing.assert_close(average, expected)


@pytest.mark.parametrize("pause", [1, 4, 6])
@pytest.mark.parametrize("arguments", [{}, {"ema_start": "1ep", "update_interval": "1ep"}], ids=str)
def test_a_run_resumed_in_the_warm_up_has_the_same_average(tmp_path: Path, pause: int, arguments: Any) -> None:
    saver = CheckpointSaver(tmp_path, interval="100ep")
    whole = train(EMA(**arguments)).state_dict()
    train(EMA(**arguments), saver, Recorder(pause))
    resumed = train(EMA(**arguments), load_path=tmp_path).state_dict()
    assert torch.equal(resumed["average"]["weight"], whole["average"]["weight"])
    assert resumed["count"] == whole["count"]


def test_an_average_saved_before_there_was_a_warm_up_is_kept() -> None:
    """It has been updated many times, so the decay of the next update is not 0.1."""
    ema, model = EMA(decay=0.75), nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 8.0)
    ema.load_state_dict({"average": {"weight": torch.zeros(1, 1)}})
    with Engine(State(model=model, algorithms=[ema]), Logger()) as engine:
        engine.run_event(Event.FIT_START)
        engine.run_event(Event.BATCH_END)
    assert ema.averaged_state_dict()["weight"].item() == 2.0


def told_of(ema: EMA, **settings: Any) -> str:
    """Return what is warned of as training starts, nothing if nothing is."""
    state = State(algorithms=[ema], **{"model": nn.Linear(1, 1), "train_dataloader": make_data(), **settings})
    with warnings.catch_warnings(record=True) as caught, Engine(state, Logger()) as engine:
        warnings.simplefilter("always")
        engine.run_event(Event.FIT_START)
    assert {warning.category for warning in caught} <= {UserWarning}
    return "".join(str(warning.message) for warning in caught)


@pytest.mark.parametrize(
    ("decay", "duration", "warns"),
    [(0.99, "230ba", True), (0.99, "231ba", False), (0.1, "2ba", False), (0.1000001, "2ba", True), (0.9, "1ba", False)],
)
def test_it_warns_where_more_than_a_tenth_is_left_of_the_initial_weights(
    decay: float, duration: str, warns: bool
) -> None:
    """0.99 to the power of 229 is 0.1001; the average starts as the weights after the first batch."""
    assert ("initial weights" in told_of(EMA(decay, warmup=False), max_duration=duration)) == warns
    assert told_of(EMA(decay), max_duration=duration) == ""


def test_the_warning_says_how_much_is_left_and_what_to_do() -> None:
    ema = EMA(half_life="2ba", ema_start="1ba", warmup=False)
    assert told_of(ema, max_duration="4ba") == (
        "the average of ema, which is what is evaluated, would still be 35% its initial weights, those at "
        "ema_start='1ba', when this training ends (max_duration='4ba'). Updates until then: 3 "
        "(update_interval='1ba'), with a decay of 0.707107. Set warmup=True, or a smaller decay or half_life, or an "
        "earlier ema_start"
    )


def test_an_average_that_is_never_updated_is_warned_of_with_the_warm_up_too() -> None:
    with pytest.warns(UserWarning, match="100% its initial weights.*: 0 .*Set a shorter update_interval"):
        train(EMA(update_interval="4ep"))


LOADER = DataLoader(TensorDataset(*map(torch.cat, zip(*make_data(), strict=True))), batch_size=8)


@pytest.mark.parametrize("data", [make_data(), LOADER], ids=["list", "DataLoader"])
@pytest.mark.parametrize(
    ("duration", "interval", "start"),
    [
        ("12ba", "1ba", "0ba"),
        ("3ep", "1ba", "5ba"),
        ("3ep", "3ba", "5ba"),
        ("3ep", "1ep", "1ep"),
        ("10ba", "1ep", "2ba"),
        ("3ep", "1ba", "0.4dur"),
        ("100ba", "1ba", "0.07dur"),
        ("96sp", "16sp", "0ba"),
        ("3ep", "1ba", "33sp"),
        ("3ep", "20sp", "0ba"),
        ("96sp", "4sp", "0.5dur"),
        ("50sp", "1ba", "1ep"),
    ],
)
def test_the_updates_that_it_expects_are_those_that_come(duration: str, interval: str, start: str, data: Any) -> None:
    """A list does not say how many rows there are, so nothing is said where samples have to be turned into batches."""
    ema = EMA(0.999, interval, ema_start=start, warmup=False)
    told = told_of(ema, max_duration=duration, train_dataloader=data)
    is_unknown = "sp" in duration + interval + start and (duration, interval, start) != ("96sp", "16sp", "0ba")
    if data is not LOADER and is_unknown:
        assert told == "" or start == "0.5dur"
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(ema, data=data, max_duration=duration)
    assert f"Updates until then: {ema.state_dict()['count'] - 1} (" in told


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ({}, {}),
        ({"update_interval": "1sec"}, {"max_duration": "3ep"}),
        ({}, {"max_duration": "3ep", "train_dataloader": iter([])}),
        ({"ema_start": "3ep"}, {"max_duration": "3ep"}),
        ({"ema_start": "9ep"}, {"max_duration": "3ep"}),
    ],
    ids=["no length", "seconds", "a stream", "at the end", "after the end"],
)
def test_a_length_that_is_not_known_and_an_average_that_never_starts_are_not_warned_of(
    arguments: Any, settings: Any
) -> None:
    assert told_of(EMA(decay=0.999, warmup=False, **arguments), **settings) == ""


def test_seconds_count_where_all_lengths_are_in_seconds() -> None:
    ema = EMA(0.5, "10sec", ema_start="5sec", warmup=False)
    assert "Updates until then: 2 (" in told_of(ema, max_duration="29sec") and told_of(ema, max_duration="50sec") == ""


def test_the_digits_example_is_not_warned_of() -> None:
    assert told_of(EMA(), max_duration="5ep", train_dataloader=make_loader("train"), model=DigitsNet()) == ""


def test_a_run_is_warned_once_and_a_resumed_one_not_again(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="initial weights") as caught:
        train(EMA(ema_start="2ba", warmup=False), CheckpointSaver(tmp_path), max_duration="3ep")
    assert len(caught) == 1
    train(EMA(ema_start="2ba", warmup=False), load_path=tmp_path, max_duration="4ep")
