"""What an evaluation gives, and when it runs."""

import math
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver

from .parts import Memory, at, batches, linear, rows, trainer, writing_down


class OwnLoss(nn.Module):
    """Its forward takes the whole batch, a dict; it is a loss of squares."""

    def __init__(self) -> None:
        super().__init__()
        self.net = linear()

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.net(batch["x"])  # type: ignore[no-any-return]

    def loss(self, outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> Any:
        return {"ce": F.cross_entropy(outputs, batch["y"]), "l2": outputs.pow(2).mean()}


class WithEvalForward(OwnLoss):
    def eval_forward(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return 2 * self(batch), batch["y"]


def loss_by_hand(*loaders: list[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    """Return the mean loss over all rows of each loader."""
    model = linear()
    joined = [[torch.cat(items) for items in zip(*loader, strict=True)] for loader in loaders]
    return [F.cross_entropy(model(inputs), targets).item() for inputs, targets in joined]


def test_several_loaders_are_distinguished_by_their_labels() -> None:
    a, b = batches(8, 2), [rows(5, seed=9)]
    first, second = loss_by_hand(a, b)
    results = trainer(eval_dataloader={"seen": a, "new": b}).eval()
    assert results == {"seen/loss": pytest.approx(first, abs=1e-6), "new/loss": pytest.approx(second, abs=1e-6)}
    assert list(results) == ["seen/loss", "new/loss"]


def test_eval_of_a_loader_given_to_it_leaves_the_trainers_own() -> None:
    made = trainer(eval_dataloader={"own": batches(3)})
    assert list(made.eval(batches(8))) == ["eval/loss"]
    assert list(made.eval({"other": batches(8)})) == ["other/loss"]
    assert list(made.eval()) == ["own/loss"]


def test_the_same_keys_are_logged_at_the_batch_where_it_ran() -> None:
    memory = Memory()
    made = trainer(eval_dataloader={"a": batches(3), "b": batches(2)}, loggers=memory)
    results = made.eval()
    made.fit()
    logged = [(step, metrics) for step, metrics in memory.metrics if "train/lr/0" not in metrics]
    assert logged[:2] == [(0, {"a/loss": results["a/loss"]}), (0, {"b/loss": results["b/loss"]})]
    assert [(step, list(metrics)) for step, metrics in logged[2:]] == [
        *((2, ["train/loss_epoch"]), (2, ["a/loss"]), (2, ["b/loss"])),
    ]


def test_state_metrics_are_the_latest_results_and_known_at_eval_end() -> None:
    seen: list[dict[str, float]] = []
    note = at("eval_end", lambda state: seen.append(state.metrics))
    made = trainer(eval_dataloader={"a": batches(3), "b": batches(2)}, callbacks=note)
    results = made.eval()
    assert seen == [{"a/loss": results["a/loss"]}, results]
    assert made.state.metrics == results


@pytest.mark.parametrize(
    ("interval", "evaluated_at"),
    [("1ep", [3, 6]), ("2ep", [6]), ("2ba", [2, 4, 6]), ("4ba", [4, 6]), ("10sp", [2, 3, 5, 6]), ("9ep", [6])],
)
def test_it_runs_at_each_interval_and_once_more_at_the_end_of_fit(interval: str, evaluated_at: list[int]) -> None:
    seen: list[int] = []
    note = at("eval_start", lambda state: seen.append(state.timestamp.batch))
    data, evaluation = batches(8, 8, 4), batches(3)
    trainer(data, max_duration="2ep", eval_dataloader=evaluation, eval_interval=interval, callbacks=note).fit()
    assert seen == evaluated_at


def test_it_runs_at_the_end_of_each_fit_in_mid_epoch() -> None:
    seen: list[int] = []
    made = trainer(
        batches(8, 8, 8),
        eval_dataloader=batches(3),
        callbacks=at("eval_start", lambda state: seen.append(state.timestamp.batch)),
    )
    made.fit("1ba")
    made.fit()
    assert seen == [1, 3]


def test_between_two_batches_it_runs_after_batch_end_and_before_the_checkpoint() -> None:
    events: list[str] = []
    wanted = ("batch_end", "eval_start", "eval_end", "batch_checkpoint", "epoch_end")
    trainer(batches(8), eval_dataloader=batches(3), eval_interval="1ba", callbacks=writing_down(events, wanted)).fit()
    assert events == ["batch_end", "eval_start", "eval_end", "batch_checkpoint", "epoch_end"]


def dicts(*sizes: int) -> list[dict[str, torch.Tensor]]:
    return [{"x": inputs, "y": targets} for inputs, targets in batches(*sizes)]


def test_the_targets_of_a_batch_are_freed_before_the_next_forward() -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    class MakesTargets(OwnLoss):
        def eval_forward(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
            alive.append(sum(earlier() is not None for earlier in made))
            targets = batch["y"].clone()
            made.append(weakref.ref(targets))
            return self(batch), targets

    data = [{"x": inputs, "y": targets} for inputs, targets in batches(8, 3, 8)]
    trainer(data, MakesTargets(), loss_fn=None, eval_dataloader=data).eval()
    assert alive == [0, 0, 0]


def test_eval_forward_gives_outputs_and_targets_to_loss_and_metrics() -> None:
    model = WithEvalForward()
    received: list[Any] = []

    class Keep:
        def reset(self) -> None:
            received.clear()

        def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
            received.append((outputs, targets))

        def compute(self) -> float:
            return len(received)

    batch = dicts(6)[0]
    results = trainer([batch], model, loss_fn=None, eval_dataloader=[batch], metrics={"seen": Keep()}).eval()
    outputs = 2 * model.net(batch["x"])
    assert results == {"eval/loss": pytest.approx(sum(model.loss(outputs, batch).values()).item()), "eval/seen": 1.0}
    assert torch.equal(received[0][0], outputs) and received[0][1] is batch["y"]


def test_a_loss_that_is_nan_although_targets_count_makes_the_set_nan() -> None:
    bad = torch.full((2, 4), math.nan), torch.zeros(2, dtype=torch.long)
    assert math.isnan(trainer().eval([rows(4), bad])["eval/loss"])


def test_an_evaluation_that_was_interrupted_keeps_the_losses_it_has_even_a_nan(tmp_path: Path) -> None:
    loss, nothing = nn.CrossEntropyLoss(ignore_index=1), (torch.randn(4, 4), torch.ones(4, dtype=torch.long))
    loaders = {"none": [nothing], "first": batches(3, 4), "second": batches(4, 4, 1)}
    once = iter([True])

    def pause(state: State) -> None:
        if state.dataloader_label == "second" and next(once, False):
            state.pause_training()

    def made(**settings: Any) -> Any:
        saver = CheckpointSaver(tmp_path / "run", "100ba")
        callbacks = [at("eval_batch_end", pause), saver]
        return trainer(batches(4), loss_fn=loss, eval_dataloader=loaders, callbacks=callbacks, **settings)

    with made() as paused:
        paused.fit()
    memory = Memory()
    with made(autoresume=True, loggers=memory) as resumed:
        resumed.fit()
        again = resumed.eval()
    assert [name for _, metrics in memory.metrics[:1] for name in metrics] == ["second/loss"]
    assert math.isnan(resumed.state.metrics["none/loss"])
    assert resumed.state.metrics == pytest.approx(again, nan_ok=True)
