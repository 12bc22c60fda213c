"""SWA in a run: which weights it takes, what evaluation sees, statistics, its learning rate, and what it refuses."""

from functools import partial
from typing import Any

import optim_parts
import pytest
import torch
from optim_parts import Recorder, pause_after, same
from parts import at, batches, net
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset

from engine_core import Callback, Engine, Event, Logger, State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import EngineError
from engine_core_author import ThreadRanks
from optim_plugin import SWA


def make_trainer(swa, recorder, **settings):
    """Return one of 20 batches in 4 epochs."""
    given = {"max_duration": "4ep", **settings}
    return optim_parts.make_trainer(swa, recorder, data=batches(8, 8, 8, 8, 8), **given)


@pytest.mark.parametrize(
    ("arguments", "settings", "taken"),
    [
        ({"start": 0.5}, {}, [9, 14, 19]),
        ({"start": 0.51}, {}, [14, 19]),
        ({"start": 0.5, "update_interval": "2ep"}, {}, [9, 19]),
        ({"start": 0.7, "update_interval": "3ba"}, {}, [14, 17]),
        ({"start": 0.5, "update_interval": "2ba"}, {"max_duration": "13ba"}, [7, 9, 11]),
        ({"start": 0.8, "update_interval": "12ba"}, {"max_duration": "3ep"}, [11]),  # 2/3 + 2/5 / 3 < 0.8
    ],
)
def test_it_is_the_mean_of_the_weights_at_the_ends_of_intervals(arguments, settings, taken):
    """Batches of 20 in 4 epochs, counted from 0; BatchNorm's statistics are averaged too, integers are the last's."""
    swa, recorder = SWA(**arguments), Recorder()
    with make_trainer(swa, recorder, **settings) as trainer:
        trainer.fit()
    average = swa.averaged_state_dict()
    for name, tensor in average.items():
        weights = [recorder.steps[step][name] for step in taken]
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, torch.stack(weights).mean(0), rtol=1e-5, atol=1e-7)
        else:
            assert torch.equal(tensor, weights[-1])
    assert swa.state_dict()["count"] == len(taken)


def test_evaluation_sees_the_weights_before_start_and_the_mean_after():
    swa, recorder = SWA(start=0.75), Recorder()
    with make_trainer(swa, recorder, eval_dataloader=batches(8)) as trainer:
        trainer.fit()
    seen, steps = recorder.evaluated, recorder.steps
    expected = [steps[4], steps[9], steps[14], swa.averaged_state_dict()]
    assert all(torch.equal(s[name], e[name]) for s, e in zip(seen, expected, strict=True) for name in s)
    assert not torch.equal(seen[3]["0.weight"], steps[19]["0.weight"])
    assert torch.equal(trainer.state.model.state_dict()["0.weight"], steps[19]["0.weight"])


def test_an_interval_that_never_ends_after_start_leaves_evaluation_as_it_is_and_warns():
    swa, recorder = SWA(update_interval="9ep"), Recorder()
    with make_trainer(swa, recorder, eval_dataloader=batches(8)) as trainer:
        trainer.fit("3ep")
        with pytest.warns(
            UserWarning, match=r"swa averaged nothing: .* first 9ep that ends at 0\.7 .*'4ep' contains none"
        ):
            trainer.fit("1ep")
    assert torch.equal(recorder.evaluated[-1]["0.weight"], recorder.steps[-1]["0.weight"])
    assert swa.averaged_state_dict() is None


def test_a_length_that_is_not_known_is_refused_with_the_first_batch():
    state = State(model=net())
    with pytest.raises(ValueError, match="max_duration is not known"):
        SWA().validate(state)


@pytest.mark.parametrize(
    "arguments", [*({"update_interval": at} for at in ("10sp", "0ep")), {"start": -0.1}, {"start": 1}]
)
def test_intervals_are_whole_epochs_or_batches_and_the_start_is_within_the_training(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        SWA(**arguments)


DATA = batches(8, 8, 8, 8, 8)


def make_loader(**settings):
    """Return a loader whose order is that of its own generator."""
    rows = TensorDataset(*map(torch.cat, zip(*DATA, strict=True)))
    return DataLoader(rows, 8, shuffle=True, **{"generator": torch.Generator().manual_seed(3), **settings})


def make_net():
    torch.manual_seed(1)
    norm = nn.BatchNorm1d(8)
    return nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 8), norm, nn.utils.spectral_norm(nn.Linear(8, 3)))


class Counted(list[Any]):
    """Batches, and how often they were read."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        return super().__iter__()


def make_with_loader(swa, *callbacks, data=None, **settings):
    given = {"model": make_net(), "max_duration": "4ep", **settings}
    return optim_parts.make_trainer(swa, *callbacks, data=data or DATA, **given)


def test_they_are_those_of_torchs_update_bn_without_dropout_and_what_is_evaluated():
    swa, seen = SWA(start=0.5, update_bn=[x for x, _ in DATA]), Recorder()
    with make_with_loader(swa, seen, eval_dataloader=batches(8)) as trainer:
        trainer.fit()
    average, oracle = swa.averaged_state_dict(), make_net()
    oracle.load_state_dict(average)
    oracle[0].p = 0.0
    update_bn([x for x, _ in DATA], oracle)
    assert all(torch.equal(seen.evaluated[-1][name], tensor) for name, tensor in average.items())
    for name in ("2.running_mean", "2.running_var"):
        assert torch.equal(average[name], oracle.state_dict()[name])
        assert not torch.allclose(average[name], trainer.state.model.state_dict()[name])


@pytest.mark.parametrize(
    ("settings", "evaluated"),
    [({}, batches(8)), ({"num_workers": 1, "persistent_workers": True}, batches(8)), ({"generator": None}, None)],
    ids=["plain", "workers", "at the end of fit"],
)
def test_training_does_not_notice_it_even_where_the_loader_is_that_of_training(settings, evaluated):
    """In the middle of epochs; the generators, the order and the modes are as without it."""
    ends = []
    for gives_loader in (False, True):
        data = make_loader(**settings)
        swa = SWA(start=0.3, update_interval="1ba", update_bn=data if gives_loader else None)
        with make_with_loader(swa, data=data, eval_dataloader=evaluated, eval_interval="2ba") as trainer:
            trainer.fit("2ep")
            trainer.fit()
            modes = [module.training for module in trainer.state.model.modules()]
            ends.append((trainer.state.model.state_dict(), modes, trainer.state.model[2].momentum))
    (without, *others), (states, *rest) = ends
    assert same(without, states) and others == rest


@pytest.mark.parametrize(("evaluates", "passes"), [(True, 2), (False, 1)])
def test_a_pass_is_made_only_where_the_mean_has_changed_and_is_used(evaluates, passes):
    """From epoch 3 of 4 on. A second evaluation needs none; without any, there is one at the end."""
    loader = Counted(DATA)
    settings = {"eval_dataloader": {"a": batches(8), "b": batches(8)}} if evaluates else {}
    with make_with_loader(SWA(start=0.7, update_bn=loader), **settings) as trainer:
        trainer.fit()
        trainer.eval(batches(8))
    assert loader.passes == passes


def test_a_norm_that_is_frozen_keeps_its_statistics():
    swa = SWA(start=0.5, update_bn=DATA)
    with make_with_loader(swa, at("epoch_start", lambda state: state.model[2].eval())) as trainer:
        trainer.fit()
    assert swa.averaged_state_dict()["2.running_mean"].tolist() == [0.0] * 8


def test_a_step_in_whose_middle_it_comes_is_the_same():
    def evaluate(state):
        if state.timestamp.batch > 12:
            trainer.eval(batches(8))

    ends = []
    for callbacks in ([], [at("after_forward", evaluate)]):
        with make_with_loader(SWA(0.1, "1ba", update_bn=DATA), *callbacks) as trainer:
            trainer.fit()
        ends.append(trainer.state.model.state_dict())
    assert same(*ends)


def test_a_resumed_run_is_that_of_one_go(tmp_path):
    """The mean in the checkpoint has no statistics of its own yet."""
    ends = []
    for stops in (False, True):
        swa = SWA(start=0.2, update_bn=make_loader())
        saver = CheckpointSaver(tmp_path / str(stops), interval="1ep")
        if stops:
            with make_with_loader(swa, saver, data=make_loader()) as trainer:
                trainer.fit("2ep")
            swa = SWA(start=0.2, update_bn=make_loader())
        with make_with_loader(swa, saver, data=make_loader(), autoresume=stops) as trainer:
            if not stops:
                trainer.fit("2ep")
            seen = [trainer.eval(batches(8, 8))]
            trainer.fit()
            seen.append(trainer.eval(batches(8, 8)))
        ends.append((seen, swa.averaged_state_dict()))
    assert ends[0][0] == ends[1][0]
    assert same(ends[0][1], ends[1][1])


def test_on_several_ranks_they_are_the_mean_of_those_of_the_ranks_loaders():
    def averages(shifts, ranks):
        swa = SWA(start=0.5, update_bn=[x + shifts[ranks.rank] for x, _ in DATA])
        with make_with_loader(swa, parallel=ranks) as trainer:
            trainer.fit()
        return swa.averaged_state_dict() or {}

    means = [
        [average["2.running_mean"] for average in ThreadRanks.run(partial(averages, shifts))]
        for shifts in ((0, 2), (1, 1))
    ]
    assert torch.equal(*means[0])
    torch.testing.assert_close(means[0], means[1])


@pytest.mark.parametrize("given", [iter(DATA), "train", 3, make_loader().dataset], ids=type)
def test_what_gives_no_second_pass_is_refused(given):
    with pytest.raises(TypeError, match=r"update_bn=.* has to be a loader that starts over for each pass, such as a"):
        SWA(update_bn=given)


def test_a_loader_without_batches_is_refused():
    with make_with_loader(SWA(start=0.5, update_bn=[])) as trainer:
        with pytest.raises((ValueError, EngineError), match="update_bn: the loader gave no batches"):
            trainer.fit()
        assert trainer.state.model[2].momentum == 0.1


def test_it_needs_whole_weights():
    assert SWA(update_bn=DATA).metadata.needs == ("whole_weights", "duration")
    assert SWA().metadata.needs == ("duration",)


class Rates(Callback):
    """The learning rates that each batch is trained with."""

    def __init__(self):
        self.seen = []

    def after_train_batch(self, state, logger):
        self.seen.append([round(float(group["lr"]), 10) for group in state.optimizers[0].param_groups])


def halving(optimizer):
    return LambdaLR(optimizer, lambda step: 0.5**step)


def make_with_rates(swa, *callbacks, lrs=(0.8,), **settings):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    layers = (model[0], model[2])
    groups = [{"params": list(layer.parameters()), "lr": lr} for layer, lr in zip(layers, lrs * 2, strict=False)]
    given = {"model": model, "data": batches(8, 8, 8, 8, 8), "max_duration": "4ep", **settings}
    return optim_parts.make_trainer(swa, *callbacks, optimizers=torch.optim.SGD(groups), **given)


def rates(swa, **settings):
    recorder = Rates()
    with make_with_rates(swa, recorder, **settings) as trainer:
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
def test_from_start_on_the_rate_goes_straight_to_its_own_and_the_scheduler_rests(arguments, expected):
    """20 batches in 4 epochs; the scheduler halves the rate after each epoch, as the last case shows."""
    assert rates(SWA(**{"swa_lr": 0.1, **arguments}), schedulers=halving) == expected


def test_a_scheduler_that_steps_each_batch_rests_too_and_groups_go_from_their_own_rates():
    recorder, swa = Rates(), SWA(start=0.5, swa_lr=0.1, anneal="2ba")
    with make_with_rates(swa, recorder, lrs=(0.8, 0.4), max_duration="8ba", schedulers=(halving, "2ba")) as trainer:
        trainer.fit()
        assert trainer.state.schedulers[0].last_epoch == 2
    later = [[0.2, 0.1], [0.15, 0.1], [0.1, 0.1], [0.1, 0.1]]
    assert recorder.seen == [[0.8, 0.4], [0.8, 0.4], [0.4, 0.2], [0.4, 0.2], *later]


def test_a_rate_that_is_a_tensor_stays_the_same_tensor():
    model, lr = nn.Linear(4, 3), torch.tensor(0.8)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    swa = SWA(start=0, swa_lr=0.1, anneal="2ba")
    with optim_parts.make_trainer(swa, model=model, optimizers=optimizer) as trainer:
        trainer.fit()
    assert optimizer.param_groups[0]["lr"] is lr and lr.item() == pytest.approx(0.1)


@pytest.mark.parametrize("stop", [9, 10, 12, 15])
def test_a_run_that_is_resumed_has_the_same_rates_weights_and_average(tmp_path, stop):
    """Before the start, at it, on the way, and at the end of an epoch on the way."""

    def run(folder, *callbacks, **settings):
        swa, recorder = SWA(start=0.5, swa_lr=0.1, anneal="7ba"), Rates()
        saver = CheckpointSaver(tmp_path / folder, interval="100ep")
        with make_with_rates(swa, recorder, saver, *callbacks, schedulers=halving, **settings) as trainer:
            trainer.fit()
        return swa, trainer.state, recorder.seen

    whole, state, expected = run("whole")
    _, _, first = run("parts", pause_after(stop))
    resumed, other, second = run("parts", load_path=tmp_path / "parts")
    assert first + second == expected
    assert same(state.model.state_dict(), other.model.state_dict())
    assert same(whole.averaged_state_dict(), resumed.averaged_state_dict())
    assert other.schedulers[0].state_dict()["last_epoch"] == state.schedulers[0].last_epoch == 1


def test_an_instance_in_a_second_run_starts_from_that_runs_rate():
    swa = SWA(start=0.5, swa_lr=0.1, anneal="2ba")
    assert rates(swa, max_duration="6ba") == [0.8, 0.8, 0.8, 0.8, 0.45, 0.1]
    assert swa.state_dict()["annealing"] == {"begun": 3, "rates": [0.8, 0.8]}
    recorder = Rates()
    with make_with_rates(swa, recorder, lrs=(0.4,), max_duration="6ba") as trainer:
        trainer.fit("1ba")
        assert swa.state_dict() == {}
        trainer.fit()
    assert [seen[0] for seen in recorder.seen] == [0.4, 0.4, 0.4, 0.4, 0.25, 0.1]


def test_in_a_loop_without_a_trainer_state_says_that_schedulers_rest():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.8)
    state = State(model=nn.Linear(1, 1), optimizers=optimizer, max_duration="4ba", algorithms=[SWA(0.5, swa_lr=0.1)])
    seen = []
    with Engine(state, Logger()) as engine:
        for _ in range(4):
            state.timestamp = state.timestamp.to_next_batch()
            engine.run_event(Event.BATCH_END)
            seen.append((state.loop.schedulers_paused, round(optimizer.param_groups[0]["lr"], 10)))
    assert seen == [(False, 0.8), (True, 0.8), (True, 0.73), (True, 0.66)]


def test_rolled_back_to_before_the_start_it_begins_again_at_the_rates_of_that_moment():
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
def test_any_number_of_optimizers_but_one_is_refused_with_the_first_batch(start, count):
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
def test_impossible_arguments_are_refused(arguments, error, message):
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
def test_a_state_that_is_not_its_own_is_refused_and_nothing_taken(annealing, message):
    swa = SWA(swa_lr=0.1)
    swa.load_state_dict({"annealing": {"begun": 2, "rates": [0.4]}})
    with pytest.raises((ValueError, TypeError), match=message):
        swa.load_state_dict({"annealing": annealing})
    assert swa.state_dict() == {"annealing": {"begun": 2, "rates": [0.4]}}
