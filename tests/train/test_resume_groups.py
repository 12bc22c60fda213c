"""Groups and optimizers that a callback adds in training are resumed, if it adds them at AFTER_LOAD too."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from engine_core import Callback, Logger, State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import CheckpointError

from .parts import at, batches, net, same, trainer


class Unfreeze(Callback):
    """Adds the first layer to the optimizer in the second epoch, and a rate of its own to its scheduler."""

    def __init__(self, *, resumes: bool = True) -> None:
        self.resumes = resumes
        self.found: list[Any] = []

    def add(self, state: State) -> None:
        optimizer: Any = state.optimizers[0]
        if state.timestamp.epoch >= 1 and len(optimizer.param_groups) == 1:
            self.found = [len(optimizer.state), optimizer.param_groups[0]["lr"]]
            rate = 0.1 * optimizer.param_groups[0]["lr"]
            optimizer.add_param_group({"params": list(state.model[0].parameters()), "lr": rate})
            for scheduler in state.schedulers:
                scheduler.base_lrs.append(0.001)
                scheduler.lr_lambdas.append(scheduler.lr_lambdas[0])

    def epoch_start(self, state: State, logger: Logger) -> None:
        self.add(state)

    def after_load(self, state: State, logger: Logger) -> None:
        if self.resumes:
            self.add(state)


class Decay:
    """A rate that a scheduler saves, since it is no function."""

    def __init__(self) -> None:
        self.power = 0.9

    def __call__(self, step: int) -> float:
        return self.power**step


def made(folder: Path, *callbacks: Any, **settings: Any) -> Any:
    def adam(parameters: Any) -> Any:
        return torch.optim.Adam([*parameters][2:], lr=0.01)

    given = {"max_duration": "3ep", "seed": 3, "optimizers": adam, **settings}
    return trainer(batches(6, 6), net(0.2), callbacks=[*callbacks, CheckpointSaver(folder, "1ba")], **given)


def of(one: Any) -> Any:
    state = one.state
    rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in state.optimizers]
    return dict(state.model.state_dict()), [o.state_dict()["state"] for o in state.optimizers], rates


SCHEDULED = {"schedulers": lambda o: lr_scheduler.LambdaLR(o, Decay())}


@pytest.mark.filterwarnings("ignore:no optimizer trains")
@pytest.mark.parametrize("settings", [{}, SCHEDULED], ids=["alone", "with a scheduler"])
@pytest.mark.parametrize("length", ["1ba", "2ba", "3ba", "5ba"])
def test_a_group_that_is_added_in_training_is_resumed(length: str, settings: Any, tmp_path: Path) -> None:
    with made(tmp_path / "whole", Unfreeze(), **settings) as whole:
        whole.fit()
    with made(tmp_path / "first", Unfreeze(), **settings) as first:
        first.fit(length)
    with made(tmp_path / "second", Unfreeze(), load_path=tmp_path / "first", **settings) as second:
        second.fit()
    assert same(of(second), of(whole))


@pytest.mark.filterwarnings("ignore:no optimizer trains")
def test_an_optimizer_that_is_added_in_training_is_resumed(tmp_path: Path) -> None:
    def add(state: Any) -> None:
        if state.timestamp.epoch >= 1 and len(state.optimizers) == 1:
            state.optimizers.append(torch.optim.SGD(state.model[0].parameters(), lr=0.1, momentum=0.9))

    def callbacks() -> list[Any]:
        return [at("epoch_start", add), at("after_load", add)]

    with made(tmp_path / "whole", *callbacks()) as whole:
        whole.fit()
    with made(tmp_path / "first", *callbacks()) as first:
        first.fit("3ba")
    with made(tmp_path / "second", *callbacks(), load_path=tmp_path / "first") as second:
        second.fit()
    assert same(of(second), of(whole))


@pytest.mark.filterwarnings("ignore:no optimizer trains")
def test_a_callback_finds_the_groups_that_there_are_as_saved_and_may_change_them(tmp_path: Path) -> None:
    with made(tmp_path, Unfreeze()) as first:
        first.fit("3ba")

    def change(state: Any) -> None:
        state.optimizers[0].param_groups[0]["lr"] = 0.5

    unfreeze = Unfreeze()
    with made(tmp_path / "second", unfreeze, at("after_load", change), load_path=tmp_path) as second:
        rates = [group["lr"] for group in second.state.optimizers[0].param_groups]
    assert unfreeze.found == [4, 0.01]
    assert rates == [0.5, 0.001]


@pytest.mark.filterwarnings("ignore:no optimizer trains")
def test_a_group_that_no_callback_adds_again_is_refused_with_the_place_to_add_it(tmp_path: Path) -> None:
    with made(tmp_path, Unfreeze()) as first:
        first.fit("3ba")
    with pytest.raises(CheckpointError) as refused:
        made(tmp_path / "second", Unfreeze(resumes=False), load_path=tmp_path)
    assert str(refused.value) == (
        "optimizers[0] (Adam) differs from the saved one in its parameters or their order: None where it had "
        "'0.weight'; a callback that adds parameter groups or optimizers in training has to add them in its after_load "
        "too"
    )


@pytest.mark.parametrize("saved", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizer_of_another_class_that_a_callback_sets_is_refused_by_both_names(
    saved: Any, tmp_path: Path
) -> None:
    def replace(state: Any) -> None:
        state.optimizers = [torch.optim.Adam(state.model.parameters(), lr=0.1)]

    def resumed(**settings: Any) -> Any:
        return made(tmp_path / "second", at("after_load", replace), optimizers=saved, load_path=tmp_path, **settings)

    with made(tmp_path, optimizers=saved) as first:
        first.fit("1ba")
    with pytest.raises(CheckpointError) as refused:
        resumed()
    assert str(refused.value) == (
        f"optimizers[0] is Adam and can't load the saved state of {saved.__name__}: change it back, or start a new run "
        "from the saved weights (load_path with load_weights_only=True)"
    )
    resumed(load_weights_only=True).close()


@pytest.mark.filterwarnings("ignore:no optimizer trains")
def test_a_rollback_to_before_a_group_was_added_keeps_the_group(tmp_path: Path) -> None:
    kept, after = [], []

    def roll_back(state: Any) -> None:
        if state.timestamp.batch == 1:
            kept.append(state.loop.snapshot())
        elif state.timestamp.batch == 3:
            state.loop.go_back(kept[0])
            after.append(of(made_))

    with made(tmp_path, Unfreeze(), at("batch_checkpoint", roll_back)) as made_:
        made_.fit("3ba")
    ((weights, (states,), rates),) = after
    assert same(weights["4.weight"], kept[0].model["4.weight"])
    assert [entry["step"].item() for entry in states.values()] == [1, 1, 1, 1, 1, 1]
    assert rates == [[0.01, 0.001]]
