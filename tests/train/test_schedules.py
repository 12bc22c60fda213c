"""Schedules that know the length of the training: lengths, `1dur` among them, in a scheduler's own steps."""

import functools
import warnings

import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, MultiStepLR, OneCycleLR, StepLR

from engine_core import Time
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.config import Config, ConfigError, override
from engine_core.errors import DurationWarning
from engine_core.run import make_trainer

from .parts import at, batches, linear, trainer

HERE = __name__


def warmed_up(optimizer, steps, warmup):
    rising = LinearLR(optimizer, 0.1, total_iters=warmup)
    return lr_scheduler.SequentialLR(optimizer, [rising, CosineAnnealingLR(optimizer, steps - warmup)], [warmup])


def four_batches():
    return batches(4, 4, 4, 4)


def described(target, args, interval="1ba", **settings):
    net, data, loss, sgd = "torch.nn:Linear", f"{HERE}:four_batches", "torch.nn:CrossEntropyLoss", "torch.optim:SGD"
    return Config(
        model={"target": net, "args": {"in_features": 4, "out_features": 3}},
        data={"target": data},
        loss={"target": loss},
        optimizer={"target": sgd, "args": {"lr": 0.1}},
        schedulers=[{"target": target, "args": args, "interval": interval}],
        trainer={"max_duration": "10ep", "device": "cpu", "progress_bar": False, **settings},
    )


def rates(made, event="batch_end"):
    """Fit, and return the rate at the start and after each scheduler's step."""
    seen = [made.state.optimizers[0].param_groups[0]["lr"]]
    made.state.callbacks.append(at(event, lambda state: seen.append(state.optimizers[0].param_groups[0]["lr"])))
    with made:
        made.fit()
    return seen


def by_hand(make, steps):
    optimizer = torch.optim.SGD(linear().parameters(), lr=0.1)
    theirs = make(optimizer)
    seen = [optimizer.param_groups[0]["lr"]]
    for _ in range(steps):
        optimizer.step()
        theirs.step()
        seen.append(optimizer.param_groups[0]["lr"])
    return seen


TORCHS = "torch.optim.lr_scheduler:"
HALVES = {"milestones": ["0.5dur", "0.75dur"]}
CURVES = {
    "cosine": (f"{TORCHS}CosineAnnealingLR", {"T_max": "1dur"}, CosineAnnealingLR),
    "one cycle": (f"{TORCHS}OneCycleLR", {"max_lr": 1, "total_steps": "1dur"}, lambda o, n: OneCycleLR(o, 1, n)),
    "milestones": (f"{TORCHS}MultiStepLR", HALVES, lambda o, n: MultiStepLR(o, [n // 2, n // 4 * 3])),
    "in sequence": (f"{HERE}:warmed_up", {"warmup": "0.25dur"}, lambda o, n: warmed_up(o, n, n // 4)),
}


@pytest.mark.parametrize("name", CURVES)
def test_a_shorter_run_has_the_whole_curve(name):
    target, args, make = CURVES[name]
    config = described(target, args)
    whole, short = (rates(make_trainer(each)) for each in (config, override(config, max_duration="2ep")))
    assert whole == by_hand(lambda optimizer: make(optimizer, 40), 40)
    assert short == by_hand(lambda optimizer: make(optimizer, 8), 8)
    last = -2 if name == "one cycle" else -1  # torch's reaches its end one step earlier than it may be stepped
    assert short[last] == pytest.approx(whole[last])


@pytest.mark.parametrize(
    ("interval", "duration", "length", "steps"),
    [
        ("1ba", "3ep", "1dur", 12),
        ("1ep", "3ep", "0.5dur", 1),
        ("1ep", "11ba", "1dur", 2),
        ("1ba", "100ba", "0.29dur", 29),
        ("0.1dur", "10ep", "1dur", 10),
        ("1ep", "2ep", "0.1dur", 1),
        ("1ba", "2ep", "1ep", 4),
        ("1ep", "10ep", "9ba", 2),
        ("8sp", "2ep", "32sp", 4),
        ("10sec", "2ep", "1m", 6),
        ("1ba", "2ep", "2dur", 16),
    ],
)
def test_a_length_becomes_steps_at_the_interval_rounded_down(interval, duration, length, steps):
    halve = functools.partial(StepLR, step_size=length)
    by_place = functools.partial(lambda size, optimizer: StepLR(optimizer, size), Time(length))
    for schedule in (halve, by_place):
        made = trainer(four_batches(), max_duration=duration, schedulers=(schedule, interval))
        assert made.state.schedulers[0].step_size == steps


@pytest.mark.parametrize(
    ("interval", "duration", "seen"), [("1ep", "11ba", 2), ("3ba", "11ba", 3), ("0.3dur", "3ep", 4)]
)
def test_steps_is_how_often_the_scheduler_steps(interval, duration, seen):
    given = []

    def constant(optimizer, steps):
        given.append(steps)
        return lr_scheduler.ConstantLR(optimizer, 1.0)

    with trainer(four_batches(), max_duration=duration, schedulers=(constant, interval)) as made:
        made.fit()
    assert given == [made.state.schedulers[0].last_epoch] == [seen]


@pytest.mark.parametrize(("slip", "problem"), [("1durr", "is not a length"), ("10", "has no unit")])
def test_a_slip_in_a_config_names_file_and_argument(slip, problem):
    config = described(f"{TORCHS}CosineAnnealingLR", {"T_max": slip})
    with pytest.raises(ConfigError, match=f"schedulers: CosineAnnealingLR: T_max='{slip}': '{slip}' {problem}"):
        make_trainer(config)


def misfit(scheduler, name, own, steps):
    return (
        f"schedulers: {scheduler} has {name}={own}, but the whole training steps it {steps}: write {name}='1dur', in a "
    )


@pytest.mark.parametrize(
    ("scheduler", "interval", "told"),
    [
        (lambda o: CosineAnnealingLR(o, 9), "1ep", misfit("CosineAnnealingLR", "T_max", 9, "2 times, every 1ep")),
        (lambda o: OneCycleLR(o, 1, 9), "1ba", misfit("OneCycleLR", "total_steps", 9, "8 times, every 1ba")),
        (lambda o: CosineAnnealingLR(o, 2), "1ep", None),
        (functools.partial(CosineAnnealingLR, T_max="0.5dur"), "1ba", None),
        (lambda o: CosineAnnealingLR(o, 9), "8sp", None),
    ],
)
def test_a_scheduler_whose_length_is_not_the_run_s_is_told_once_at_fit_start(scheduler, interval, told):
    told_by = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        heard = [at(event, lambda state: told_by.append(len(caught))) for event in ("fit_start", "epoch_start")]
        with trainer(four_batches(), max_duration="2ep", schedulers=(scheduler, interval), callbacks=heard) as made:
            made.fit("1ep")
            made.fit()
    assert [each.category for each in caught] == [DurationWarning] * (told is not None)
    assert all(str(each.message).startswith(told) for each in caught)
    assert told_by[:2] == [0, len(caught)]


def test_a_fit_past_max_duration_says_which_length_stays():
    schedule = functools.partial(CosineAnnealingLR, T_max="0.5dur")
    made = trainer(four_batches(), max_duration="2ep", schedulers=(schedule, "1ba"))
    with made, pytest.warns(DurationWarning) as caught:
        made.fit("3ep")
    past, kept = (str(each.message) for each in caught)
    assert "max_duration of 2ep" in past and "ends at 3ep" in past and "keep their length of 2ep" in past
    assert "T_max=4" in kept and "12 times, every 1ba" in kept and "made with" in kept


def test_a_resumed_scheduler_keeps_its_saved_length_and_says_so(tmp_path):
    schedule = (functools.partial(CosineAnnealingLR, T_max="1dur"), "1ba")
    with trainer(four_batches(), max_duration="2ep", schedulers=schedule, callbacks=CheckpointSaver(tmp_path)) as made:
        made.fit("1ep")
    longer = trainer(four_batches(), max_duration="3ep", schedulers=schedule, load_path=tmp_path)
    assert longer.state.schedulers[0].T_max == 8
    told = "T_max=8, but the whole training steps it 12 times, every 1ba: it was resumed, and keeps the length that was"
    with longer, pytest.warns(DurationWarning, match=told):
        longer.fit()


def test_a_fit_without_a_whole_length_tells_nothing():
    with trainer(four_batches(), max_duration=None, schedulers=lambda o: CosineAnnealingLR(o, 9)) as made:
        made.fit("1ep")
        made.fit("1ep")
