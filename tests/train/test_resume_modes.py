"""What is trained, and which modules are in train mode, is saved and resumed, and what a program changed is told."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import read_content, write_content
from engine_core.errors import CheckpointError, CheckpointWarning

from .parts import at, batches, linear, net, same, trainer


def made(folder: Path, model: Any = None, change: Any = None, **settings: Any) -> Any:
    """Return a trainer of two epochs, in whose second one a callback changes something, once."""

    def once(state: Any) -> None:
        if change is not None and state.timestamp.epoch == 1:
            change(state)

    given = {"max_duration": "3ep", "seed": 3, "callbacks": [at("epoch_start", once), CheckpointSaver(folder, "1ba")]}
    return trainer(batches(6, 6), model or net(0.2), **{**given, **settings})


def frozen() -> Any:
    model = net(0.2)
    model[0].requires_grad_(False)
    return model


def unfreeze(state: Any) -> None:
    state.model[0].requires_grad_(True)


def rest(state: Any) -> None:
    state.model[1].eval()


def infer(state: Any) -> None:
    state.model.eval()


class Criterion(nn.CrossEntropyLoss):
    def __init__(self) -> None:
        super().__init__()
        self.noise = nn.Dropout(0.5)

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return super().forward(self.noise(outputs), targets)


def silence(state: Any) -> None:
    state.loss_fn.noise.eval()


@pytest.mark.parametrize(
    ("model", "change", "settings"),
    [(frozen, unfreeze, {}), (net, rest, {}), (net, infer, {}), (net, silence, {"loss_fn": Criterion})],
    ids=["unfrozen", "a norm in eval mode", "all in eval mode", "a module of the loss"],
)
def test_what_a_callback_changed_once_is_resumed(model: Any, change: Any, settings: Any, tmp_path: Path) -> None:
    def run(folder: Path, **loading: Any) -> Any:
        with made(folder, model(), change, **{k: v() for k, v in settings.items()}, **loading) as one:
            one.fit()
        return dict(one.state.model.state_dict())

    whole = run(tmp_path / "whole")
    with made(tmp_path / "first", model(), change, **{k: v() for k, v in settings.items()}) as first:
        first.fit("3ba")
    # The program is the same, so nothing differs.
    assert same(run(tmp_path / "second", load_path=tmp_path / "first", load_changed="error"), whole)


def test_a_model_that_comes_otherwise_is_told_and_resumes_as_saved(tmp_path: Path) -> None:
    with made(tmp_path) as one:
        one.fit("1ba")
    other = frozen()
    other[1].eval()
    given = "in the model was given as False but resumes as saved: it was given as True"
    told = [f"requires_grad of '0.weight' and '0.bias' {given}", f"training of '1' {given}"]
    with pytest.raises(CheckpointError) as refused:
        made(tmp_path, other, load_path=tmp_path, load_changed="error")
    assert all(f"\n  {line}" in str(refused.value) for line in told)
    assert not other[0].weight.requires_grad
    assert not other[1].training
    with pytest.warns(CheckpointWarning) as warned:
        made(tmp_path, other, load_path=tmp_path).close()
    assert [str(w.message).partition(": ")[2] for w in warned] == told
    assert other[0].weight.requires_grad
    assert other[1].training


@pytest.mark.parametrize(
    ("model", "what"), [(net, "the model, '0', '1' and 3 more in the model"), (linear, "the model")]
)
def test_a_whole_model_is_told_by_that_name(model: Any, what: str, tmp_path: Path) -> None:
    with made(tmp_path, model()) as one:
        one.fit("1ba")
    with pytest.raises(CheckpointError) as refused:
        made(tmp_path, model().eval(), load_path=tmp_path, load_changed="error")
    assert f"\n  training of {what} was given as False but resumes as saved" in str(refused.value)


def test_a_checkpoint_of_before_has_no_modes_and_loads(tmp_path: Path) -> None:
    with made(tmp_path) as one:
        one.fit("1ba")
    without(tmp_path / "ep0-ba1", "modes")
    model = frozen()
    made(tmp_path, model, load_path=tmp_path, load_changed="error").close()
    assert not model[0].weight.requires_grad


def test_modes_that_no_run_saved_are_refused(tmp_path: Path) -> None:
    with made(tmp_path) as one:
        one.fit("1ba")
    without(tmp_path / "ep0-ba1", "modes", {"now": {"model": {"training": {"0": 3}}}})
    with pytest.raises(CheckpointError, match="the checkpoint has no valid training of the model"):
        made(tmp_path, load_path=tmp_path)


def without(checkpoint: Path, name: str, value: Any = None) -> None:
    """Take an entry out of a checkpoint's state, or put a value in its place."""
    content = read_content(checkpoint)
    state = {k: v for k, v in content.state.items() if k != name} | ({} if value is None else {name: value})
    shutil.rmtree(checkpoint)
    write_content(checkpoint, replace(content, state=state))
