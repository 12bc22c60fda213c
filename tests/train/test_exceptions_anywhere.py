"""An exception anywhere in a run: it comes out, callbacks are closed once, and the latest checkpoint can be used."""

import shutil

import pytest
import torch

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import read_content, resolve

from .injected import (
    DATA,
    FAILS_AT,
    PLACES,
    Acting,
    Bystander,
    Failing,
    Fault,
    Paired,
    Rows,
    eval_rows,
    nothing,
    optimizer_with,
    scheduler_with,
)
from .parts import EVENTS, net, notes, same, trainer

SAVED = 4
"""How many batches are trained before the run that fails is resumed from them."""

PAIRS = [
    ("fit_start", "fit_end"),
    ("epoch_start", "epoch_end"),
    ("before_dataloader", "after_dataloader"),
    ("batch_start", "batch_end"),
    ("before_train_batch", "after_train_batch"),
    ("before_forward", "after_forward"),
    ("before_loss", "after_loss"),
    ("before_backward", "after_backward"),
    ("eval_start", "eval_end"),
    ("eval_batch_start", "eval_batch_end"),
    ("eval_before_forward", "eval_after_forward"),
]
EARLY = {"init": 0, "after_load": SAVED, "fit_start": SAVED}


NEW_ONES = pytest.mark.filterwarnings("ignore:.* was not in the saved run:engine_core.errors.CheckpointWarning")


def made_with(folder, callbacks=(), interval="1h", **settings):
    """Return a trainer that resumes in a folder, for twelve batches in three epochs."""
    given = {
        "data": DATA["examples"](nothing),
        "model": net(dropout=0.3),
        "optimizers": optimizer_with(nothing),
        "schedulers": scheduler_with(nothing),
        "eval_dataloader": eval_rows(nothing),
        "metrics": {"rows": Rows("", nothing)},
        "max_duration": "3ep",
        "callbacks": [CheckpointSaver(folder, interval), *callbacks],
        "autoresume": True,
        "seed": 4,
        **settings,
    }
    return trainer(**given)


def come_to(made):
    state = made.state
    return [
        dict(state.model.state_dict()),
        state.optimizers[0].state_dict(),
        state.schedulers[0].get_last_lr(),
        state.metrics,
        state.timestamp.batch,
        torch.get_rng_state(),
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return `whole(kind)`, what an uninterrupted run comes to with the data of this kind."""
    ends = {}

    def whole(kind):
        if kind not in ends:
            with made_with(tmp_path_factory.mktemp("whole"), data=DATA[kind](nothing)) as made:
                made.fit()
            ends[kind] = come_to(made)
        return ends[kind]

    return whole


@pytest.fixture(scope="module")
def begin(tmp_path_factory):
    """Return `begin(folder, kind)`, which fills a folder with a run on this data, to be resumed."""
    begun = {}

    def begin(folder, kind="examples"):
        if kind not in begun:
            begun[kind] = tmp_path_factory.mktemp("begun")
            with made_with(begun[kind], data=DATA[kind](nothing)) as made:
                made.fit(f"{SAVED}ba")
        shutil.copytree(begun[kind], folder, dirs_exist_ok=True)

    return begin


def failed(folder, fault, callbacks=(), **settings):
    """Resume until the fault; return what is raised, if all were closed once and what is saved can be read."""
    bystanders = [Bystander(fault), Bystander()]
    with pytest.raises(BaseException) as raised:  # noqa: PT011  which one it is the tests say
        made = made_with(folder, [bystanders[0], *callbacks, bystanders[1]], "2ba", **settings)
        with made:
            made.fit()
    assert [bystander.closed for bystander in bystanders] == [1, 1]
    read_content(resolve(folder))
    return raised


def assert_resumes(folder, end, least=FAILS_AT - 1, **settings):
    """Resume without the fault, from no earlier than expected."""
    with made_with(folder, **settings) as made:
        assert made.state.timestamp.batch >= least
        made.fit()
    assert same(come_to(made), end)


def least_of(event):
    return SAVED if event in EARLY else FAILS_AT - 1


@pytest.mark.filterwarnings("ignore:fit.. has nothing to do")  # after FIT_END all is saved
@pytest.mark.parametrize("event", EVENTS)
def test_in_a_callback(event, begin, whole, tmp_path):
    begin(tmp_path)
    fault = Fault(EARLY.get(event, FAILS_AT))
    raised = failed(tmp_path, fault, [Failing(event, fault)])
    assert raised.value is fault.error
    assert [note for note in notes(raised) if "Failing" in note and event.upper() in note]
    assert_resumes(tmp_path, whole("examples"), least_of(event))


@NEW_ONES
@pytest.mark.parametrize("half", [0, 1], ids=["first half", "second half"])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_in_one_half_of_a_pair(pair, half, begin, whole, tmp_path):
    begin(tmp_path)
    fault = Fault(EARLY.get(pair[half], FAILS_AT))
    algorithms = [Paired(*pair), Acting(pair[half], fault, *pair), Paired(*pair)]
    raised = failed(tmp_path, fault, algorithms=algorithms)
    assert raised.value is fault.error
    assert [note for note in notes(raised) if "Acting" in note and pair[half].upper() in note]
    assert [algorithms[0]._depth, algorithms[2]._depth] == [0, 0]
    again = [Paired(*pair), Acting(pair[half], nothing, *pair), Paired(*pair)]
    assert_resumes(tmp_path, whole("examples"), least_of(pair[half]), algorithms=again)


@pytest.mark.parametrize("place", PLACES)
def test_elsewhere(place, begin, whole, tmp_path):
    kind = "list" if place == "train loader" else "examples"
    begin(tmp_path, kind)
    fault = Fault()
    assert failed(tmp_path, fault, **PLACES[place](fault)).value is fault.error
    assert_resumes(tmp_path, whole(kind), data=DATA[kind](nothing), load_changed="adopt")
