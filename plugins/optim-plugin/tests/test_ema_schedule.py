"""EMA's half-life and its start: against the recurrence written by hand, and resumed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Callback, Engine, Event, Logger, State, Time, Trainer
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from optim_plugin import EMA


def make_data(batches: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(8, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator)) for _ in range(batches)
    ]


class Recorder(Callback):
    """The weight after each batch, what each evaluation sees, and how many updates there were until then."""

    def __init__(self) -> None:
        self.steps: list[torch.Tensor] = []
        self.evaluated: list[torch.Tensor] = []

    def batch_end(self, state: Any, logger: Logger) -> None:
        self.steps.append(state.model.weight.detach().clone())

    def eval_batch_end(self, state: Any, logger: Logger) -> None:
        self.evaluated.append(state.model.weight.detach().clone())


def make_trainer(ema: EMA, *callbacks: Any, **settings: Any) -> Trainer:
    torch.manual_seed(1)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"max_duration": "3ep", "loss_fn": F.cross_entropy, "optimizers": optimizer, "device": "cpu", "seed": 1}
    return Trainer(model, make_data(), algorithms=ema, callbacks=callbacks, **{**given, **settings})


def run(ema: EMA, **settings: Any) -> tuple[Recorder, torch.Tensor]:
    recorder = Recorder()
    with make_trainer(ema, recorder, **settings) as trainer:
        trainer.fit()
    return recorder, ema.averaged_state_dict()["weight"]


@pytest.mark.filterwarnings("ignore:the average of ema:UserWarning")
@pytest.mark.parametrize(
    ("half_life", "interval", "decay", "updates"),
    [
        ("1ba", "1ba", 0.5, range(1, 12)),
        ("2ba", "1ba", 0.5**0.5, range(1, 12)),
        ("2ba", "4ba", 0.25, [3, 7, 11]),
        ("1ep", "1ep", 0.5, [3, 7, 11]),
        (Time("32sp"), "16sp", 0.5**0.5, [1, 3, 5, 7, 9, 11]),
    ],
)
def test_what_is_in_the_average_counts_half_after_a_half_life(
    half_life: Any, interval: str, decay: float, updates: Any
) -> None:
    recorder, average = run(EMA(half_life=half_life, update_interval=interval, warmup=False))
    expected = recorder.steps[0]
    for step in updates:
        expected = decay * expected + (1 - decay) * recorder.steps[step]
    torch.testing.assert_close(average, expected)


@pytest.mark.filterwarnings("ignore:the average of ema:UserWarning")
@pytest.mark.parametrize(
    ("start", "interval", "first", "updates"),
    [
        ("5ba", "1ba", 4, range(5, 12)),
        ("5ba", "3ba", 4, [5, 8, 11]),
        ("1ep", "1ba", 3, range(4, 12)),
        ("1ep", "1ep", 3, [7, 11]),
        ("0.5dur", "1ba", 5, range(6, 12)),
        (Time("0.4dur"), "1ba", 4, range(5, 12)),
        ("33sp", "1ba", 4, range(5, 12)),
    ],
)
def test_the_average_starts_as_the_weights_where_it_is_told_to(
    start: Any, interval: str, first: int, updates: Any
) -> None:
    """After batch `first` of 12, 4 in each epoch, counted from 0."""
    recorder, average = run(EMA(0.75, interval, ema_start=start, warmup=False))
    expected = recorder.steps[first]
    for step in updates:
        expected = 0.75 * expected + 0.25 * recorder.steps[step]
    torch.testing.assert_close(average, expected)


def test_until_then_there_is_no_average_and_evaluation_sees_the_weights() -> None:
    ema, recorder = EMA(0.5, ema_start="5ba", warmup=False), Recorder()
    with make_trainer(ema, recorder, eval_dataloader=make_data(1), eval_interval="2ba") as trainer:
        trainer.fit("4ba")
        assert ema.state_dict() == {} and ema.averaged_state_dict() is None
        trainer.fit("2ba")
    steps = recorder.steps
    assert torch.equal(recorder.evaluated[0], steps[1]) and torch.equal(recorder.evaluated[1], steps[3])
    torch.testing.assert_close(recorder.evaluated[2], (steps[4] + steps[5]) / 2)


def test_a_start_at_0_is_the_first_batch() -> None:
    averages = [run(EMA(0.5, ema_start=start))[1] for start in ("0ba", "0dur", "0ep")]
    assert torch.equal(averages[0], averages[1]) and torch.equal(averages[0], averages[2])


class StopAt(Callback):
    def __init__(self, batch: int) -> None:
        self.batch = batch

    def batch_end(self, state: Any, logger: Logger) -> None:
        if state.timestamp.batch == self.batch:
            state.pause_training()


@pytest.mark.parametrize("stop", [3, 4, 5, 6, 8])
@pytest.mark.parametrize("arguments", [{"ema_start": "5ba"}, {"ema_start": "1ep", "half_life": "3ba"}], ids=str)
def test_a_resumed_run_has_the_same_average(tmp_path: Path, stop: int, arguments: Any) -> None:
    def train(folder: str, *callbacks: Any, **settings: Any) -> dict[str, torch.Tensor]:
        ema = EMA(**arguments)
        saver = CheckpointSaver(tmp_path / folder, interval="100ep")
        with make_trainer(ema, saver, *callbacks, **settings) as trainer:
            trainer.fit()
        return ema.state_dict().get("average", {})  # type: ignore[no-any-return]

    whole = train("whole")
    train("parts", StopAt(stop))
    resumed = train("parts", load_path=tmp_path / "parts")
    assert whole.keys() == resumed.keys() == {"weight", "bias"}
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_an_end_before_the_start_is_no_mistake() -> None:
    ema = EMA(ema_start="9ba")
    assert ema.may_rest(State(max_duration="3ba")) and not EMA().may_rest(State())


def test_a_fraction_of_a_training_of_unknown_length_is_refused() -> None:
    state = State(model=nn.Linear(1, 1), algorithms=[EMA(ema_start="0.5dur")])
    with Engine(state, Logger()) as engine, pytest.raises(ValueError, match=r"so '0\.5dur' can't be located"):
        engine.run_event(Event.FIT_START)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"decay": 0.9, "half_life": "9ba"}, "decay=0.9 and half_life='9ba' say the same: give one of the two"),
        ({"half_life": "2ep"}, "half_life='2ep' and update_interval='1ba' have .* such as update_interval='1ep'"),
        ({"half_life": "0ba"}, "half_life has to be positive"),
        ({"half_life": "0.1dur"}, "half_life: give it in ep"),
        ({"half_life": 100}, "half_life: a bare number has no unit"),
        ({"ema_start": "-1ba"}, "ema_start='-1ba' has to be within the training"),
        ({"ema_start": "1.5dur"}, "ema_start='1.5dur' has to be within the training"),
        ({"ema_start": 0.5}, "ema_start: a bare number has no unit"),
        ({"warmup": "no"}, "warmup='no' .* has to be True or False"),
        ({"ema_start": "later"}, "ema_start: 'later' is not a length of training"),
    ],
    ids=str,
)
def test_impossible_arguments_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        EMA(**arguments)


def test_the_decay_is_0_999_unless_something_else_is_said() -> None:
    assert (EMA().decay, EMA().half_life) == (0.999, None)
    assert (EMA(half_life="9ba").decay, EMA(half_life="9ba").half_life) == (None, "9ba")
