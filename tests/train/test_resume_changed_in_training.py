"""What a callback changes in training is resumed: groups that it adds, at AFTER_LOAD too, what trains, and modes."""

import shutil
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from engine_core import Algorithm, AlgorithmMetadata, Callback
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import read_content, write_content
from engine_core.errors import CheckpointError, CheckpointWarning
from engine_core.surgery import follow_parameters

from .parts import at, batches, linear, net, same, trainer


class Unfreeze(Callback):
    """Adds the first layer to the optimizer in the second epoch, and a rate of its own to its scheduler."""

    def __init__(self, *, resumes=True):
        self.resumes = resumes

    def add(self, state):
        optimizer = state.optimizers[0]
        if state.timestamp.epoch >= 1 and len(optimizer.param_groups) == 1:
            rate = 0.1 * optimizer.param_groups[0]["lr"]
            optimizer.add_param_group({"params": list(state.model[0].parameters()), "lr": rate})
            for scheduler in state.schedulers:
                scheduler.base_lrs.append(0.001)
                scheduler.lr_lambdas.append(scheduler.lr_lambdas[0])

    def epoch_start(self, state, logger):
        self.add(state)

    def after_load(self, state, logger):
        if self.resumes:
            self.add(state)


class Decay:
    """A rate that a scheduler saves, since it is no function."""

    def __init__(self):
        self.power = 0.9

    def __call__(self, step):
        return self.power**step


def made(folder, *callbacks, **settings):
    adam = lambda parameters: torch.optim.Adam([*parameters][2:], lr=0.01)  # noqa: E731
    given = {"max_duration": "3ep", "seed": 3, "optimizers": adam, **settings}
    return trainer(batches(6, 6), net(0.2), callbacks=[*callbacks, CheckpointSaver(folder, "1ba")], **given)


def assert_resumed(folder, length, callbacks, **settings):
    """Compare a whole run with one that begins so and is resumed."""
    with made(folder / "whole", *callbacks(), **settings) as whole:
        whole.fit()
    with made(folder / "first", *callbacks(), **settings) as first:
        first.fit(length)
    with made(folder / "second", *callbacks(), load_path=folder / "first", **settings) as second:
        second.fit()
    assert same(of(second), of(whole))


def of(one):
    state = one.state
    rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in state.optimizers]
    return dict(state.model.state_dict()), [o.state_dict()["state"] for o in state.optimizers], rates


SCHEDULED = {"schedulers": lambda o: lr_scheduler.LambdaLR(o, Decay())}


@pytest.mark.filterwarnings("ignore:no optimizer trains")
@pytest.mark.parametrize(("length", "settings"), [("2ba", SCHEDULED), ("3ba", {}), ("3ba", SCHEDULED)])
def test_a_group_that_is_added_in_training_is_resumed(length, settings, tmp_path):
    assert_resumed(tmp_path, length, lambda: [Unfreeze()], **settings)


@pytest.mark.filterwarnings("ignore:no optimizer trains")
def test_an_optimizer_that_is_added_in_training_is_resumed(tmp_path):
    def add(state):
        if state.timestamp.epoch >= 1 and len(state.optimizers) == 1:
            state.optimizers.append(torch.optim.SGD(state.model[0].parameters(), lr=0.1, momentum=0.9))

    assert_resumed(tmp_path, "3ba", lambda: [at("epoch_start", add), at("after_load", add)])


@pytest.mark.filterwarnings("ignore:no optimizer trains")
def test_a_callback_may_change_the_saved_rates_and_a_rollback_keeps_a_group_that_is_newer(tmp_path):
    kept, after = [], []

    def roll_back(state):
        if state.timestamp.batch == 1:
            kept.append(state.loop.snapshot())
        elif state.timestamp.batch == 3:
            state.loop.go_back(kept[0])
            after.append(of(first))

    with made(tmp_path, Unfreeze(), at("batch_checkpoint", roll_back)) as first:
        first.fit("3ba")
    ((weights, (states,), rates),) = after
    assert same(weights["4.weight"], kept[0].model["4.weight"])
    assert [entry["step"].item() for entry in states.values()] == [1] * 6
    assert rates == [[0.01, 0.001]]
    change = at("after_load", lambda state: state.optimizers[0].param_groups[0].update(lr=0.5))
    with made(tmp_path / "second", Unfreeze(), change, load_path=tmp_path) as second:
        assert of(second)[2] == [[0.5, 0.001]]


@pytest.mark.filterwarnings("ignore:no optimizer trains")
def test_a_group_that_no_callback_adds_again_is_refused_with_the_place_to_add_it(tmp_path):
    with made(tmp_path, Unfreeze()) as first:
        first.fit("3ba")
    says = (
        r"^optimizers\[0\] \(Adam\) differs from the saved one in its parameters or their order: None where it had "
        "'0.weight'; a callback that adds parameter groups or optimizers in training has to add them in its after_load"
    )
    with pytest.raises(CheckpointError, match=says):
        made(tmp_path / "second", Unfreeze(resumes=False), load_path=tmp_path)


def test_an_optimizer_of_another_class_that_a_callback_sets_is_refused_by_both_names(tmp_path):
    def replace(state):
        state.optimizers = [torch.optim.Adam(state.model.parameters(), lr=0.1)]

    given = {"optimizers": torch.optim.SGD}
    with made(tmp_path, **given) as first:
        first.fit("1ba")
    with pytest.raises(CheckpointError, match=r"optimizers\[0\] is Adam and can't load the saved state of SGD"):
        made(tmp_path / "second", at("after_load", replace), load_path=tmp_path, **given)


def changing(folder, model=None, change=None, **settings):
    """Return a trainer of two epochs, in whose second one a callback changes something, once."""

    def once(state):
        if change is not None and state.timestamp.epoch == 1:
            change(state)

    given = {"max_duration": "3ep", "seed": 3, "callbacks": [at("epoch_start", once), CheckpointSaver(folder, "1ba")]}
    return trainer(batches(6, 6), model or net(0.2), **{**given, **settings})


def frozen():
    model = net(0.2)
    model[0].requires_grad_(False)
    return model


CHANGES = [(frozen, lambda state: state.model[0].requires_grad_(True)), (net, lambda state: state.model.eval())]


@pytest.mark.parametrize(("model", "change"), CHANGES, ids=["unfrozen", "in eval mode"])
def test_what_a_callback_changed_once_is_resumed(model, change, tmp_path):
    def run(folder, **loading):
        with changing(folder, model(), change, **loading) as one:
            one.fit()
        return dict(one.state.model.state_dict())

    whole = run(tmp_path / "whole")
    with changing(tmp_path / "first", model(), change) as first:
        first.fit("3ba")
    # The program is the same, so nothing differs.
    assert same(run(tmp_path / "second", load_path=tmp_path / "first", load_changed="error"), whole)


def test_a_model_that_comes_otherwise_is_told_and_resumes_as_saved(tmp_path):
    with changing(tmp_path) as one:
        one.fit("1ba")
    other = frozen()
    other[1].eval()
    given = "in the model was given as False but resumes as saved: it was given as True"
    told = [f"requires_grad of '0.weight' and '0.bias' {given}", f"training of '1' {given}"]
    with pytest.raises(CheckpointError) as refused:
        changing(tmp_path, other, load_path=tmp_path, load_changed="error")
    assert all(f"\n  {line}" in str(refused.value) for line in told)
    assert not other[0].weight.requires_grad
    assert not other[1].training
    with pytest.warns(CheckpointWarning) as warned:
        changing(tmp_path, other, load_path=tmp_path).close()
    assert [str(w.message).partition(": ")[2] for w in warned] == told
    assert other[0].weight.requires_grad
    assert other[1].training


def test_modes_that_no_run_saved_are_refused(tmp_path):
    with changing(tmp_path) as one:
        one.fit("1ba")
    checkpoint = tmp_path / "ep0-ba1"
    content = read_content(checkpoint)
    shutil.rmtree(checkpoint)
    state = {**content.state, "modes": {"now": {"model": {"training": {"0": 3}}}}}
    write_content(checkpoint, replace(content, state=state))
    with pytest.raises(CheckpointError, match="the checkpoint has no valid training of the model"):
        changing(tmp_path, load_path=tmp_path)


class Joins(Algorithm):
    """A layer joins the model in the third batch."""

    metadata = AlgorithmMetadata(events=("batch_start",), writes=("model",), needs=("late_surgery",))

    def match(self, event, state):
        return event == "batch_start" and state.timestamp.batch >= 2 and len(state.model) == 1

    def apply(self, event, state, logger):
        before = dict(state.model.named_parameters())
        state.model.add_module("1", nn.Linear(3, 3))
        nn.init.eye_(state.model[1].weight)
        nn.init.zeros_(state.model[1].bias)
        follow_parameters(state.optimizers, before, dict(state.model.named_parameters()))

    def prepare_to_load(self, state, names):
        if any(name.startswith("1.") for name in names):
            self.apply(None, state, None)


@pytest.mark.parametrize("batch", [2, 3])
@pytest.mark.filterwarnings("error")
def test_a_layer_that_joins_in_training_is_there_before_its_weights_load(tmp_path, batch):
    def run(**settings):
        given = {"algorithms": Joins(), "max_duration": "4ba", "optimizers": torch.optim.Adam, **settings}
        with trainer(batches(8, 8, 8, 8), nn.Sequential(linear()), **given) as made:
            made.fit()
        return made.state.model.state_dict()

    whole = run(callbacks=CheckpointSaver(tmp_path, interval="1ba", keep_last=None))
    (path,) = tmp_path.glob(f"*-ba{batch}")
    torch.testing.assert_close(run(load_path=path), whole, rtol=0, atol=0)
