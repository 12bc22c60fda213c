"""What a checkpoint is not loaded into, and which changes since it was saved are reported."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from engine_core.errors import CheckpointError, CheckpointWarning

from .parts import same, trainer
from .test_resume import OPTIMIZERS, SCHEDULERS, Noise, loader, run, saved_runs


def wider() -> Any:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3))


def renamed() -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x))

    return Net()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (wider, r"'0.weight' is \(6, 4\) in the checkpoint and \(8, 4\) in the model"),
        (
            renamed,
            r"'body.weight' is missing .* mean '4.weight'\?\n[\s\S]*'0.weight' .* mean 'head.weight'\?\n",
        ),
    ],
)
def test_weights_of_another_model_are_refused_by_name_and_shape(model: Any, message: str, tmp_path: Path) -> None:
    saved_runs(tmp_path, "1ep")
    with pytest.raises(CheckpointError, match=message):
        trainer(loader(), model(), load_path=tmp_path, load_weights_only=True)


def test_leniently_what_fits_is_loaded_and_the_rest_is_named(tmp_path: Path) -> None:
    whole, _ = saved_runs(tmp_path, "1ep")
    model = wider()
    model[4] = nn.Linear(8, 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.warns(CheckpointWarning, match=r"not all weights were loaded:[\s\S]*'0.weight' is \(6, 4\)"):
        made = trainer(loader(), model, load_path=tmp_path, load_weights_only=True, load_strict=False)
    after = made.state.model.state_dict()
    assert same(after["4.bias"], whole[0]["4.bias"])
    assert same(after["0.weight"], before["0.weight"])


class Needed(Noise):
    @staticmethod
    def required_on_load() -> bool:
        return True


@pytest.mark.parametrize("strict", [True, False])
def test_an_algorithm_that_has_to_be_there_is_named_if_it_is_missing(strict: bool, tmp_path: Path) -> None:
    saved_runs(tmp_path, "1ep", algorithms=[Needed()])
    with pytest.raises(CheckpointError, match=r"was saved with Needed, and .* not have it: add 'needed' to"):
        run(algorithms=(), load_path=tmp_path, seed=None, load_strict=strict)


def test_an_algorithm_that_has_changed_is_reported(tmp_path: Path) -> None:
    saved_runs(tmp_path, "1ep", algorithms=[Noise(0.1)])
    with pytest.warns(CheckpointWarning, match=r"Noise: std is 0\.5, was 0\.1"):
        run(algorithms=[Noise(0.5)], load_path=tmp_path, seed=None)


def test_another_seed_than_the_saved_one_is_not_taken(tmp_path: Path) -> None:
    saved_runs(tmp_path, "1ep")
    with pytest.warns(CheckpointWarning, match="keeps the seed 4 of the saved run; seed=9 is ignored"):
        made, _ = run(load_path=tmp_path, seed=9)
    assert made.state.seed == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizers": OPTIMIZERS["two"]}, "the checkpoint has 1 optimizers, and this run has 2"),
        (
            {"optimizers": lambda p: torch.optim.SGD(list(p)[:2], lr=0.1)},
            r"optimizers\[0\] \(SGD\) differs from the saved one in its parameters",
        ),
        ({"schedulers": SCHEDULERS["cosine"]}, "the checkpoint has 0 schedulers, and this run has 1"),
    ],
)
def test_parts_of_another_run_are_refused_by_name(settings: Any, message: str, tmp_path: Path) -> None:
    saved_runs(tmp_path, "1ep")
    with pytest.raises(CheckpointError, match=message):
        run(load_path=tmp_path, seed=None, **settings)


def test_autoresume_needs_a_saver() -> None:
    with pytest.raises(ValueError, match="needs a CheckpointSaver among the callbacks, to resume from its folder: add"):
        run(autoresume=True)
