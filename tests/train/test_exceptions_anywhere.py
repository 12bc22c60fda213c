"""An exception anywhere in a run: it comes out, callbacks are closed once, and the latest checkpoint can be used."""

import shutil

import pytest
import torch
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset

from engine_core import Callback, Event
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import read_content, resolve

from .parts import EVENTS, acting, at, net, notes, rows, same, trainer

SAVED, FAILS_AT = 4, 7
"""After how many batches the run that fails is resumed, and after how many of the whole run a fault raises."""
EARLY = {"init": 0, "after_load": SAVED, "fit_start": SAVED}


class Fault:
    """Raises once, at a call after so many batches of the run."""

    def __init__(self, batch=FAILS_AT):
        self.error = self.state = None
        self._batch = batch

    def __call__(self, *_):
        if self.state is not None and self.state.timestamp.batch >= self._batch and self.error is None:
            self.error = ArithmeticError("on purpose")
            raise self.error


class Bystander(Callback):
    """Counts how often it is closed, and hands the state to a fault."""

    def __init__(self, fault):
        self.closed, self._fault = 0, fault

    def init(self, state, logger):
        self._fault.state = state

    def close(self, state, logger):
        self.closed += 1


class Examples(Dataset):
    def __init__(self, call):
        self._data, self._call = rows(20), call

    def __len__(self):
        return 20

    def __getitem__(self, index):
        self._call()
        return tuple(part[index] for part in self._data)


class Listed(list):
    """A list of batches that makes a call before it gives one."""

    def __init__(self, call, batches):
        super().__init__(batches)
        self._call = call

    def __iter__(self):
        for batch in super().__iter__():
            self._call()
            yield batch


class Rows:
    """A metric that counts rows, and makes a call in one of its methods."""

    def __init__(self, call, where=""):
        self._calls, self.count = {where: call}, 0

    def update(self, outputs, targets):
        self._calls.get("update", nothing)()
        self.count += len(targets)

    def compute(self):
        self._calls.get("compute", nothing)()
        return self.count

    def reset(self):
        self.count = 0


def nothing(*_):
    """Be the fault of a run that has none."""


def loss_with(call):
    def loss_fn(outputs, targets):
        if outputs.requires_grad:
            call()
        return torch.nn.functional.cross_entropy(outputs, targets)

    return loss_fn


def net_with(where, call):
    model = net(dropout=0.3)
    if where == "forward":
        model[0].register_forward_hook(lambda *_: call() if model.training else None)
    else:
        model[0].weight.register_hook(lambda _: call())
    return model


def optimizer_with(call):
    def make(parameters):
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        optimizer.register_step_pre_hook(lambda *_: call())
        return optimizer

    return make


def scheduler_with(call):
    class Decay(lr_scheduler.ExponentialLR):
        def step(self, *epoch):
            call()
            super().step(*epoch)

    return (lambda optimizer: Decay(optimizer, 0.9), "1ba")


DATA = {
    "examples": lambda call: DataLoader(Examples(call), 6, shuffle=True),
    "list": lambda call: Listed(call, zip(*(part.split(6) for part in rows(20)), strict=True)),
}
PLACES = {
    "forward": lambda call: {"model": net_with("forward", call)},
    "backward": lambda call: {"model": net_with("backward", call)},
    "loss_fn": lambda call: {"loss_fn": loss_with(call), "load_changed": "adopt"},  # it is another by name
    "optimizer": lambda call: {"optimizers": optimizer_with(call)},
    "scheduler": lambda call: {"schedulers": scheduler_with(call)},
    "update of a metric": lambda call: {"metrics": {"rows": Rows(call, "update")}},
    "compute of a metric": lambda call: {"metrics": {"rows": Rows(call, "compute")}},
    "dataset": lambda call: {"data": DATA["examples"](call)},
    "train loader": lambda call: {"data": DATA["list"](call)},
    "eval loader": lambda call: {"eval_dataloader": Listed(call, [rows(9)])},
}


def made_with(folder, callbacks=(), interval="1h", **settings):
    """Return a trainer that resumes in a folder, for twelve batches in three epochs."""
    given = {
        "data": DATA["examples"](nothing),
        "model": net(dropout=0.3),
        "optimizers": optimizer_with(nothing),
        "schedulers": scheduler_with(nothing),
        "eval_dataloader": Listed(nothing, [rows(9)]),
        "metrics": {"rows": Rows(nothing)},
        "callbacks": [CheckpointSaver(folder, interval), *callbacks],
        **settings,
    }
    return trainer(**given, max_duration="3ep", autoresume=True, seed=4)


def come_to(made):
    state = made.state
    learned = [dict(state.model.state_dict()), state.optimizers[0].state_dict(), state.schedulers[0].get_last_lr()]
    return [*learned, state.metrics, state.timestamp.batch, torch.get_rng_state()]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return, by the kind of data, what an uninterrupted run comes to, and a folder with a run to be resumed."""
    made = {}
    for kind, data in DATA.items():
        with made_with(tmp_path_factory.mktemp("whole"), data=data(nothing)) as whole:
            whole.fit()
        end, folder = come_to(whole), tmp_path_factory.mktemp("begun")
        with made_with(folder, data=data(nothing)) as begun:
            begun.fit(f"{SAVED}ba")
        made[kind] = end, folder
    return made


def failed(begun, folder, fault, callbacks=(), **settings):
    """Resume until the fault; return its notes, if all were closed once and what is saved can be read."""
    shutil.copytree(begun, folder, dirs_exist_ok=True)
    bystanders = [Bystander(fault), Bystander(fault)]
    with (
        pytest.raises(ArithmeticError) as raised,
        made_with(folder, [bystanders[0], *callbacks, bystanders[1]], "2ba", **settings) as made,
    ):
        made.fit()
    assert raised.value is fault.error
    assert [bystander.closed for bystander in bystanders] == [1, 1]
    read_content(resolve(folder))
    return notes(raised)


def assert_resumes(folder, end, event="", **settings):
    """Resume without the fault, from no earlier than what was saved before it."""
    with made_with(folder, **settings) as made:
        assert made.state.timestamp.batch >= (SAVED if event in EARLY else FAILS_AT - 1)
        made.fit()
    assert same(come_to(made), end)


@pytest.mark.filterwarnings("ignore:fit.. has nothing to do")  # after FIT_END all is saved
@pytest.mark.parametrize("event", EVENTS)
def test_in_a_callback(event, runs, tmp_path):
    end, begun = runs["examples"]
    fault = Fault(EARLY.get(event, FAILS_AT))
    told = failed(begun, tmp_path, fault, [at(event, fault)])
    assert [note for note in told if "callback At" in note and event.upper() in note]
    assert_resumes(tmp_path, end, event)


@pytest.mark.filterwarnings("ignore:.* was not in the saved run:engine_core.errors.CheckpointWarning")
@pytest.mark.parametrize("event", [event.value for event in Event if event.partner])
def test_in_one_half_of_a_pair(event, runs, tmp_path):
    end, begun = runs["examples"]
    fault, depths = Fault(EARLY.get(event, FAILS_AT)), [0, 0]
    pair = sorted({Event(event), Event(event).partner}, key=[*Event].index)

    def counting(place):
        def count(now, state):
            depths[place] += 1 if now is pair[0] else -1

        return acting(count, *pair, name=f"Paired{place}")

    def algorithms(call):
        return [counting(0), acting(lambda now, state: call() if now == event else None, *pair), counting(1)]

    told = failed(begun, tmp_path, fault, algorithms=algorithms(fault))
    assert [note for note in told if "Faulty" in note and event.upper() in note]
    assert depths == [0, 0]
    assert_resumes(tmp_path, end, event, algorithms=algorithms(nothing))


@pytest.mark.parametrize("place", PLACES)
def test_elsewhere(place, runs, tmp_path):
    kind = "list" if place == "train loader" else "examples"
    end, begun = runs[kind]
    fault = Fault()
    failed(begun, tmp_path, fault, **PLACES[place](fault))
    assert_resumes(tmp_path, end, data=DATA[kind](nothing), load_changed="adopt")
