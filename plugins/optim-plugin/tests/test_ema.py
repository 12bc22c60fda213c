"""EMA in a run: its start, half-life and warm-up against the recurrence by hand, what is in the model, refusals."""

import warnings

import pytest
import torch
from optim_parts import Recorder, make_trainer, pause_after, same, weights_of
from parts import batches, net
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from engine_core import Engine, Event, Logger, State, Time
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import EngineError
from optim_plugin import EMA


def broken(good):
    """Return some good batches, then one that fails in the model."""
    return [*batches(*[8] * good), (torch.ones(8, 5), torch.zeros(8, dtype=torch.long))]


@pytest.mark.parametrize("good", [0, 2])
def test_an_evaluation_by_hand_uses_the_average_and_leaves_the_weights_bit_equal_also_where_it_raises(good):
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


def test_a_saved_average_is_evaluated_without_any_fit():
    ema, fresh, recorder = EMA(decay=0.5), EMA(decay=0.5), Recorder()
    with make_trainer(ema) as trainer:
        trainer.fit()
    fresh.load_state_dict(ema.state_dict())
    assert same(fresh.averaged_state_dict(), ema.averaged_state_dict())
    with make_trainer(fresh, recorder) as trainer:
        trainer.eval(batches(8))
    assert same(recorder.evaluated[0], ema.averaged_state_dict())


def replace_norm(model):
    """New statistics for the same weight and bias."""
    norm = nn.BatchNorm1d(6)
    norm.weight, norm.bias = model[1].weight, model[1].bias
    model[1] = norm


CHANGES = {
    "another": (lambda net: setattr(net[0], "weight", nn.Parameter(net[0].weight.data)), "0.weight", Event.EVAL_START),
    "parametrized": (lambda net: nn.utils.parametrizations.weight_norm(net[0]), "0.weight", Event.BATCH_END),
    "none": (lambda net: setattr(net[1], "running_mean", None), "1.running_mean", Event.BATCH_END),
    "larger": (lambda net: setattr(net[0].weight, "data", torch.zeros(9, 4)), "0.weight", Event.BATCH_END),
    "another norm": (replace_norm, "1.running_mean", Event.EVAL_START),
    "another layer": (lambda net: net.append(nn.Linear(3, 3)), "5.weight", Event.EVAL_START),
}


@pytest.mark.parametrize(("change", "name", "event"), CHANGES.values(), ids=CHANGES)
def test_weights_that_are_replaced_after_the_start_are_refused(change, name, event):
    state = State(model=net(), algorithms=[EMA()])
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.BATCH_END)
        change(state.model)
        state.timestamp = state.timestamp.to_next_batch(8)
        with pytest.raises(EngineError, match=f"'{name}' has another tensor, shape or module than when the average"):
            engine.run_event(event)


def test_a_model_that_is_cast_in_mid_run_keeps_its_average():
    ema = EMA(decay=0.5)
    with make_trainer(ema) as trainer:
        trainer.fit("2ba")
        trainer.state.model.double()
        trainer.eval([(x.double(), y) for x, y in batches(8)])
    assert trainer.state.model[0].weight.dtype is torch.float64
    assert ema.averaged_state_dict()["0.weight"].dtype is torch.float32


def train(ema, *callbacks, **settings):
    """Train for 12 batches of 8 rows, 4 in an epoch."""
    torch.manual_seed(1)
    with make_trainer(ema, *callbacks, model=nn.Linear(4, 3), **{"max_duration": "3ep", **settings}) as trainer:
        trainer.fit()
    return ema


@pytest.mark.filterwarnings("ignore:the average of ema:UserWarning")
@pytest.mark.parametrize(
    ("arguments", "decay", "first", "updates"),
    [
        ({"half_life": "1ba"}, 0.5, 0, range(1, 12)),
        ({"half_life": "2ba", "update_interval": "4ba"}, 0.25, 0, [3, 7, 11]),
        ({"half_life": Time("32sp"), "update_interval": "16sp"}, 0.5**0.5, 0, [1, 3, 5, 7, 9, 11]),
        ({"decay": 0.75, "ema_start": "0dur"}, 0.75, 0, range(1, 12)),
        ({"decay": 0.75, "ema_start": "5ba", "update_interval": "3ba"}, 0.75, 4, [5, 8, 11]),
        ({"decay": 0.75, "ema_start": "1ep", "update_interval": "1ep"}, 0.75, 3, [7, 11]),
        ({"decay": 0.75, "ema_start": Time("0.4dur")}, 0.75, 4, range(5, 12)),
        ({"decay": 0.75, "ema_start": "33sp"}, 0.75, 4, range(5, 12)),
    ],
    ids=str,
)
@pytest.mark.parametrize("warmup", [False, True])
def test_the_average_starts_where_it_is_told_to_and_moves_on_by_its_decay_which_the_warm_up_limits(
    arguments, decay, first, updates, warmup
):
    """After batch `first` of 12, 4 in each epoch, counted from 0. The warm-up is TensorFlow's formula."""
    recorder = Recorder()
    average = train(EMA(**arguments, warmup=warmup), recorder).averaged_state_dict()["weight"]
    expected = recorder.steps[first]["weight"]
    for t, step in enumerate(updates):
        kept = min(decay, (1 + t) / (10 + t)) if warmup else decay
        expected = kept * expected + (1 - kept) * recorder.steps[step]["weight"]
    torch.testing.assert_close(average, expected)


@pytest.mark.parametrize(
    ("arguments", "stop"),
    [
        ({}, 1),
        ({"ema_start": "5ba"}, 4),
        ({"ema_start": "5ba"}, 6),
        ({"ema_start": "1ep", "half_life": "3ba"}, 4),
        ({"ema_start": "1ep", "update_interval": "1ep"}, 6),
    ],
    ids=str,
)
def test_a_resumed_run_has_the_same_average_and_warm_up(tmp_path, stop, arguments):
    whole = train(EMA(**arguments)).state_dict()
    train(EMA(**arguments), CheckpointSaver(tmp_path, interval="100ep"), pause_after(stop))
    resumed = train(EMA(**arguments), load_path=tmp_path).state_dict()
    assert same(whole["average"], resumed["average"]) and whole["count"] == resumed["count"]


def test_an_average_saved_before_there_was_a_warm_up_is_kept():
    """It has been updated many times, so the decay of the next update is not 0.1."""
    ema, model = EMA(decay=0.75), nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 8.0)
    ema.load_state_dict({"average": {"weight": torch.zeros(1, 1)}})
    with Engine(State(model=model, algorithms=[ema]), Logger()) as engine:
        engine.run_event(Event.FIT_START)
        engine.run_event(Event.BATCH_END)
    assert ema.averaged_state_dict()["weight"].item() == 2.0


def test_an_end_before_the_start_is_no_mistake():
    ema = EMA(ema_start="9ba")
    assert ema.may_rest(State(max_duration="3ba")) and not EMA().may_rest(State())


def test_a_fraction_of_a_training_of_unknown_length_is_refused():
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
        ({"update_interval": "0ba"}, "update_interval"),
        ({"ema_start": "-1ba"}, "ema_start='-1ba' has to be within the training"),
        ({"ema_start": "1.5dur"}, "ema_start='1.5dur' has to be within the training"),
        ({"ema_start": 0.5}, "ema_start: a bare number has no unit"),
        ({"ema_start": "later"}, "ema_start: 'later' is not a length of training"),
        ({"warmup": "no"}, "warmup='no' .* has to be True or False"),
    ],
    ids=str,
)
def test_impossible_arguments_are_refused(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        EMA(**arguments)


def test_the_decay_is_0_999_unless_something_else_is_said():
    assert (EMA().decay, EMA().half_life) == (0.999, None)
    assert (EMA(half_life="9ba").decay, EMA(half_life="9ba").half_life) == (None, "9ba")


def told_of(ema, **settings):
    """Return what is warned of as training starts, nothing if nothing is."""
    given = {"model": nn.Linear(1, 1), "train_dataloader": batches(8, 8, 8, 8), **settings}
    state = State(algorithms=[ema], **given)
    with warnings.catch_warnings(record=True) as caught, Engine(state, Logger()) as engine:
        warnings.simplefilter("always")
        engine.run_event(Event.FIT_START)
    assert {warning.category for warning in caught} <= {UserWarning}
    return "".join(str(warning.message) for warning in caught)


@pytest.mark.parametrize(
    ("decay", "duration", "warns"),
    [(0.99, "230ba", True), (0.99, "231ba", False), (0.1, "2ba", False), (0.1000001, "2ba", True), (0.9, "1ba", False)],
)
def test_it_warns_where_more_than_a_tenth_is_left_of_the_initial_weights(decay, duration, warns):
    """0.99 to the power of 229 is 0.1001; the average starts as the weights after the first batch."""
    assert ("initial weights" in told_of(EMA(decay, warmup=False), max_duration=duration)) == warns
    assert told_of(EMA(decay), max_duration=duration) == ""


def test_the_warning_says_how_much_is_left_and_what_to_do():
    ema = EMA(half_life="2ba", ema_start="1ba", warmup=False)
    told = told_of(ema, max_duration="4ba")
    assert "the average of ema, which is what is evaluated, would still be 35% its initial weights" in told
    assert "Updates until then: 3 (update_interval='1ba'), with a decay of 0.707107. Set warmup=True, or a" in told
    with pytest.warns(UserWarning, match="100% its initial weights.*: 0 .*Set a shorter update_interval"):
        train(EMA(update_interval="4ep"))


LOADER = DataLoader(TensorDataset(*map(torch.cat, zip(*batches(8, 8, 8, 8), strict=True))), batch_size=8)


@pytest.mark.parametrize("data", [batches(8, 8, 8, 8), LOADER], ids=["list", "DataLoader"])
@pytest.mark.parametrize(
    ("duration", "interval", "start"),
    [
        ("12ba", "1ba", "0ba"),
        ("3ep", "3ba", "5ba"),
        ("10ba", "1ep", "2ba"),
        ("3ep", "1ba", "0.4dur"),
        ("96sp", "16sp", "0ba"),
        ("3ep", "1ba", "33sp"),
        ("96sp", "4sp", "0.5dur"),
        ("50sp", "1ba", "1ep"),
    ],
)
def test_the_updates_that_it_expects_are_those_that_come(duration, interval, start, data):
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
def test_a_length_that_is_not_known_and_an_average_that_never_starts_are_not_warned_of(arguments, settings):
    assert told_of(EMA(decay=0.999, warmup=False, **arguments), **settings) == ""


def test_seconds_count_where_all_lengths_are_in_seconds():
    ema = EMA(0.5, "10sec", ema_start="5sec", warmup=False)
    assert "Updates until then: 2 (" in told_of(ema, max_duration="29sec") and told_of(ema, max_duration="50sec") == ""


def test_a_run_is_warned_once_and_a_resumed_one_not_again(tmp_path):
    with pytest.warns(UserWarning, match="initial weights") as caught:
        train(EMA(ema_start="2ba", warmup=False), CheckpointSaver(tmp_path), max_duration="3ep")
    assert len(caught) == 1
    train(EMA(ema_start="2ba", warmup=False), load_path=tmp_path, max_duration="4ep")
