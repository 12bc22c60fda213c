"""Guards among others: pauses, savers, custom rules, models and losses with parts that a step changes."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from engine_core import State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.callbacks.loss_guard import LossGuard
from engine_core.errors import NonFiniteLossError, NonFiniteLossWarning

from .parts import at, batches, linear, net, same, trainer

NAN = float("nan")


def spoiled(*bad: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    data = batches(*[8] * 10)
    for place in bad:
        data[place][0][3, 2] = NAN
    return data


def rolled_back(folder: Path, *callbacks: Any, bad: Iterable[int], interval: str = "4ba", **settings: Any) -> Any:
    guards = [CheckpointSaver(folder, interval), LossGuard("rollback"), *callbacks]
    return trainer(spoiled(*bad), net(), max_duration="10ba", callbacks=guards, seed=1, **settings)


def weights(made: Any) -> dict[str, Any]:
    return dict(made.state.model.state_dict())


def went_back(made: Any) -> list[str]:
    """Fit and return the batches of the checkpoints that were restored."""
    with made, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made.fit()
    return [str(warning.message).rpartition("-")[2] for warning in told]


def test_a_run_that_was_paused_goes_back_to_where_it_would_have_gone(tmp_path: Path) -> None:
    whole = rolled_back(tmp_path / "whole", bad=[6])
    assert went_back(whole) == ["ba4"]
    pauses = at("batch_end", lambda state: state.pause_training() if state.timestamp.batch == 5 else None)
    paused = rolled_back(tmp_path / "run", pauses, bad=[6])
    assert went_back(paused) == []
    assert (tmp_path / "run" / "ep0-ba5").is_dir()
    resumed = rolled_back(tmp_path / "run", bad=[6], autoresume=True)
    assert went_back(resumed) == ["ba4"]
    assert same(weights(resumed), weights(whole))


@pytest.mark.parametrize(("keep_last", "pause", "bad"), [(1, 5, [6]), (2, 9, [10, 11]), (3, 9, [10, 11])])
def test_a_pause_removes_no_checkpoint_that_is_restored_later(
    keep_last: int, pause: int, bad: list[int], tmp_path: Path
) -> None:
    def run(folder: Path, *callbacks: Any, **settings: Any) -> Any:
        data = batches(*[8] * 16)
        for place in bad:
            data[place][0][3, 2] = NAN
        guards = [CheckpointSaver(folder, "4ba", keep_last=keep_last), LossGuard("rollback"), *callbacks]
        return trainer(data, net(), max_duration="16ba", callbacks=guards, seed=1, **settings)

    whole = run(tmp_path / "whole")
    places = went_back(whole)
    pauses = at("batch_end", lambda state: state.pause_training() if state.timestamp.batch == pause else None)
    went_back(run(tmp_path / "run", pauses))
    resumed = run(tmp_path / "run", autoresume=True)
    assert went_back(resumed) == places
    assert len(places) == len(bad)
    assert same(weights(resumed), weights(whole))


def test_what_was_saved_before_any_interval_is_not_restored(tmp_path: Path) -> None:
    with rolled_back(tmp_path, bad=[3]) as made:
        made.fit("2ba")
        with pytest.raises(NonFiniteLossError, match="no regular checkpoint to go back to yet"):
            made.fit()


def test_a_damaged_checkpoint_is_not_restored(tmp_path: Path) -> None:
    made = rolled_back(tmp_path, bad=[9], interval="2ba")
    made.fit("5ba")
    (tmp_path / "ep0-ba2" / "manifest.json").write_text("{")
    assert went_back(made) == ["ba8"]


def test_what_only_a_pause_has_saved_is_removed_when_the_next_one_is_saved(tmp_path: Path) -> None:
    pauses = at("batch_end", lambda state: state.pause_training() if state.timestamp.batch == 5 else None)
    went_back(rolled_back(tmp_path, pauses, bad=[], interval="2ba"))
    assert sorted(path.name for path in tmp_path.glob("ep*")) == ["ep0-ba2", "ep0-ba4", "ep0-ba5"]
    with rolled_back(tmp_path, bad=[], interval="2ba", autoresume=True) as made:
        made.fit("2ba")
    assert sorted(path.name for path in tmp_path.glob("ep*")) == ["ep0-ba2", "ep0-ba4", "ep0-ba6", "ep0-ba7"]


@pytest.mark.parametrize("interval", ["1ba", "2ba"])
def test_what_was_saved_since_a_rollback_is_not_restored(interval: str, tmp_path: Path) -> None:
    made = rolled_back(tmp_path, bad=[6, 7], interval=interval)
    assert went_back(made) == ["ba6", "ba5" if interval == "1ba" else "ba4"]


def test_where_all_have_been_tried_it_stops(tmp_path: Path) -> None:
    made = rolled_back(tmp_path, bad=[6, 7, 8], interval="3ba")
    with pytest.raises(
        NonFiniteLossError, match="no regular checkpoint to go back to before that of batch 3, already tried"
    ):
        went_back(made)


def test_the_latest_checkpoint_of_several_savers_counts(tmp_path: Path) -> None:
    rare = CheckpointSaver(tmp_path / "rare", "1ep")
    made = trainer(
        spoiled(5), net(), callbacks=[rare, CheckpointSaver(tmp_path / "often", "2ba"), LossGuard("rollback")]
    )
    assert went_back(made) == ["ba4"]


def test_two_guards_that_skip_do_not_blame_the_loop() -> None:
    own = at("after_train_batch", lambda state: None if state.loss.isfinite() else state.skip_step())
    made = trainer(spoiled(3, 4), callbacks=[own, LossGuard(), LossGuard()])
    with made, pytest.warns(NonFiniteLossWarning):
        made.fit()
    assert made.state.timestamp.batch == 10


class Averaging(nn.Linear):
    """A model that assigns its buffer anew in each step, fills or registers others in the first, and expands one."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("wide", torch.zeros(3).expand(2, 3))
        self.register_buffer("cache", None)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * inputs.detach().mean(0)
            if self.cache is None:
                self.cache = inputs.detach().sum()
            if not hasattr(self, "first"):
                self.register_buffer("first", inputs.detach().sum())
        return super().forward(inputs + 0 * self.mean * self.first)


@pytest.mark.parametrize("bad", [0, 3])
def test_buffers_are_put_back_however_they_are_changed(bad: int) -> None:
    torch.manual_seed(3)
    model = Averaging()
    with trainer(spoiled(bad), model, callbacks=LossGuard(limit=1)) as made, pytest.warns(NonFiniteLossWarning):
        made.fit()
    torch.manual_seed(3)
    oracle = Averaging()
    with trainer([batch for place, batch in enumerate(spoiled()) if place != bad], oracle) as other:
        other.fit()
    assert same(weights(made), weights(other))


def test_a_model_whose_shape_the_first_batch_determines_can_be_guarded() -> None:
    model = nn.Sequential(linear(), nn.LazyBatchNorm1d())
    with trainer(spoiled(), model, callbacks=LossGuard()) as made:
        made.fit("3ba")
    assert made.state.timestamp.batch == 3


class Weighted(nn.Module):
    """A loss with a parameter that is trained, and an average of what it was."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(outputs, targets)
        self.mean.lerp_(loss.detach(), 0.1)
        return self.scale * loss + (self.scale - 0.5) ** 2 + 0.01 * self.mean * self.scale


def with_a_loss(*callbacks: Any, loss: Weighted, **settings: Any) -> Any:
    return trainer(
        spoiled(),
        net(),
        max_duration="10ba",
        loss_fn=loss,
        optimizers=lambda parameters: torch.optim.Adam([*parameters, *loss.parameters()], lr=0.1),
        callbacks=[*callbacks],
        seed=1,
        **settings,
    )


def test_gradients_and_buffers_of_the_loss_function_are_guarded() -> None:
    def explode(state: State) -> None:
        if state.timestamp.batch == 4:
            loss.mean.fill_(NAN)
            loss.scale.grad.fill_(NAN)

    loss = Weighted()
    made = with_a_loss(at("after_backward", explode), LossGuard(limit=1), loss=loss)
    with made, pytest.warns(NonFiniteLossWarning, match="the gradient of scale is not finite"):
        made.fit()
    assert loss.scale.isfinite() and loss.mean.isfinite()


def test_a_loss_function_with_its_own_state_is_resumed_exactly(tmp_path: Path) -> None:
    whole, rest = Weighted(), Weighted()
    with with_a_loss(CheckpointSaver(tmp_path, "4ba"), loss=whole) as made:
        made.fit()
    with with_a_loss(loss=rest, load_path=tmp_path / "ep0-ba4") as resumed:
        resumed.fit()
    assert same(weights(resumed), weights(made))
    assert same(dict(rest.state_dict()), dict(whole.state_dict()))
