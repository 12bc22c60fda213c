"""SelectiveBackprop in an engine, driven by hand: when it acts, whose loss it takes, what it logs."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Engine, Event, Logger, State, Timestamp
from engine_core_author import RecordingDestination
from sb_plugin import SelectiveBackprop

X, Y = torch.randn(8, 3, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 4
ALWAYS = {"start": 0, "end": 1, "scale_factor": 1, "interrupt": 0}


def net(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(*layers, nn.Linear(3, 4))


def ids(batch: Any) -> list[list[float]]:
    return [batch[0][:, 0].tolist(), batch[1].tolist()]


class OwnLoss(nn.Module):
    """A model with its own loss, fed with whole batches in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.linear(batch["x"])

    def loss(self, outputs: Any, batch: Mapping[str, torch.Tensor], reduction: str = "mean") -> torch.Tensor:
        return F.cross_entropy(outputs, batch["y"], reduction=reduction)


def test_it_matches_init_and_the_steps_of_its_schedule() -> None:
    algorithm = SelectiveBackprop(0.5, 0.9, interrupt=2)
    state = State(max_duration="10ba")
    matched = []
    for batch in range(10):
        state.timestamp = Timestamp(batch=batch, batch_in_epoch=batch)
        matched.append(algorithm.match(Event.AFTER_DATALOADER, state))
    assert matched == [False] * 6 + [True, False, True, False]
    assert [event for event in Event if algorithm.match(event, state)] == [Event.INIT, Event.FIT_START]


def test_with_keep_1_it_never_matches_a_batch() -> None:
    assert not SelectiveBackprop(**ALWAYS, keep=1).match(Event.AFTER_DATALOADER, State())


def test_an_unlimited_training_can_be_pruned_from_start_to_end(engine_of: Any, pruned: Any) -> None:
    assert len(pruned(engine_of(SelectiveBackprop(**ALWAYS)))[0]) == 4


class Untouchable(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("no scoring forward here")


@pytest.mark.parametrize(
    ("arguments", "now"),
    [
        ({**ALWAYS, "keep": 1}, Timestamp(batch=5)),
        ({"start": 0.5, "end": 0.9, "scale_factor": 1}, Timestamp(batch=4)),
        ({"start": 0.5, "end": 0.9, "scale_factor": 1}, Timestamp(batch=9)),
        ({"start": 0.0, "end": 1.0, "scale_factor": 1, "interrupt": 2}, Timestamp(batch=5, batch_in_epoch=1)),
        ({**ALWAYS, "keep": 0.99}, Timestamp(batch=5)),
    ],
    ids=["keep 1", "before start", "at end", "interrupted", "nothing to drop"],
)
def test_a_batch_that_is_not_pruned_is_the_same_object(
    engine_of: Any, pruned: Any, arguments: dict[str, Any], now: Timestamp
) -> None:
    batch = (X[:1], Y[:1]) if arguments.get("keep") == 0.99 else (X, Y)
    algorithm = SelectiveBackprop(**arguments)
    engine = engine_of(algorithm, model=Untouchable(), max_duration="10ba", timestamp=now)
    state = algorithm.state_dict()["generator"]
    assert pruned(engine, batch) is batch
    assert torch.equal(algorithm.state_dict()["generator"], state)


def test_a_second_run_uses_its_own_loss(engine_of: Any, pruned: Any) -> None:
    """The same instance; the second loss takes the opposite rows for hard."""
    algorithm, calls = SelectiveBackprop(**ALWAYS), []
    for name in ("first", "second"):

        def loss(outputs: Any, targets: Any, reduction: str = "mean", name: str = name) -> torch.Tensor:
            calls.append(name)
            return F.cross_entropy(outputs, targets, reduction=reduction)

        pruned(engine_of(algorithm, loss_fn=loss))
    assert calls == ["first", "second"]


def test_a_run_that_continues_after_another_still_uses_its_own_loss(engine_of: Any, pruned: Any) -> None:
    algorithm = SelectiveBackprop(**ALWAYS)
    first = engine_of(algorithm, model=OwnLoss(), loss_fn=None)
    pruned(engine_of(algorithm))
    assert len(pruned(first, {"x": X, "y": Y})["x"]) == 4


def test_the_loss_is_taken_before_the_model_is_wrapped(engine_of: Any, pruned: Any) -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, batch: Any) -> Any:
            return self.module(batch)

    engine = engine_of(SelectiveBackprop(**ALWAYS), model=OwnLoss(), loss_fn=None)
    engine.state.model = Wrapper(engine.state.model)
    assert len(pruned(engine, {"x": X, "y": Y})["x"]) == 4


def test_it_works_in_a_loop_that_never_fires_init() -> None:
    state = State(model=net(), algorithms=[SelectiveBackprop(**ALWAYS)], loss_fn=nn.CrossEntropyLoss(), batch=(X, Y))
    Engine(state, Logger()).run_event(Event.AFTER_DATALOADER)
    assert len(state.batch[0]) == 4


def test_the_scoring_forward_runs_in_the_precision_of_the_training(engine_of: Any, pruned: Any) -> None:
    seen = []

    def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        seen.append(outputs)
        return F.cross_entropy(outputs, targets, reduction=reduction)

    model = net()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(X).float()
    pruned(engine_of(SelectiveBackprop(**ALWAYS), model=model, loss_fn=loss, precision="amp_bf16"))
    assert torch.equal(seen[0], expected)
    assert not torch.equal(seen[0], model(X))


def test_each_active_step_logs_what_was_kept(engine_of: Any, pruned: Any) -> None:
    recorder, losses = RecordingDestination(), torch.tensor([1.0, math.nan, 3.0, math.inf])
    engine = engine_of(
        SelectiveBackprop(**ALWAYS), Logger([recorder]), model=nn.Identity(), loss_fn=lambda x, y, reduction: x
    )
    engine.state.timestamp = Timestamp(batch=11)
    assert pruned(engine, (losses, losses))[0].tolist() == [1, 3]
    expected = {"kept": 2, "loss_mean": 2.0, "kept_loss_mean": 2.0, "nonfinite": 2}
    assert recorder.metrics == [(11, {f"selective_backprop/{name}": value for name, value in expected.items()})]


def test_the_means_are_of_all_rows_and_of_those_kept(engine_of: Any, pruned: Any) -> None:
    recorder, losses = RecordingDestination(), torch.tensor([1.0, 2.0, 3.0, 10.0])
    engine = engine_of(
        SelectiveBackprop(**ALWAYS), Logger([recorder]), model=nn.Identity(), loss_fn=lambda x, y, reduction: x
    )
    kept = pruned(engine, (losses, losses))[0]
    _, logged = recorder.metrics[0]
    assert logged["selective_backprop/loss_mean"] == 4.0
    assert logged["selective_backprop/kept_loss_mean"] == kept.mean().item()


def test_without_any_finite_loss_the_means_are_nan(engine_of: Any, pruned: Any) -> None:
    recorder, losses = RecordingDestination(), torch.full((4,), math.nan)
    engine = engine_of(
        SelectiveBackprop(**ALWAYS), Logger([recorder]), model=nn.Identity(), loss_fn=lambda x, y, reduction: x
    )
    pruned(engine, (losses, losses))
    _, logged = recorder.metrics[0]
    assert math.isnan(logged["selective_backprop/loss_mean"])
    assert logged["selective_backprop/nonfinite"] == 4


def test_without_destinations_nothing_is_computed_for_the_log(
    engine_of: Any, pruned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> dict[str, float]:
        raise AssertionError

    monkeypatch.setattr("sb_plugin.algorithm.summary_of", never)
    pruned(engine_of(SelectiveBackprop(**ALWAYS)))
