"""What a row of an evaluation says: the loss of the training, what is the best so far, where and when."""

from typing import Any

import pytest
import torch
from torch import nn

from engine_core import Trainer
from engine_core.trainer import objective

from .parts import Memory, batches, trainer


def rows_of(made: Trainer, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Fit, and return the rows without their time."""
    with made:
        made.fit()
    lines = capsys.readouterr().err.splitlines()
    return [line.rpartition("  ")[0] for line in lines if line.startswith(("epoch", "batch"))]


@pytest.mark.parametrize(
    "settings",
    [{"reduction": "sum"}, {"weight": torch.tensor([1.0, 5.0, 0.1])}, {"ignore_index": 1}],
    ids=["sum", "weight", "ignore_index"],
)
def test_the_loss_in_a_row_is_the_mean_that_is_logged_for_the_epoch(
    settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    memory, still = Memory(), {"optimizers": lambda p: torch.optim.SGD(p, lr=0.0)}
    data, loss_fn = batches(8, 5), nn.CrossEntropyLoss(**settings)
    made = trainer(data, loss_fn=loss_fn, loggers=memory, progress_bar="lines", eval_dataloader=batches(3), **still)
    (row,) = rows_of(made, capsys)
    ((_, mean),) = memory.values("train/loss_epoch")
    assert f"  train/loss {mean:.4g}  " in row


def test_a_loss_is_asked_for_its_settings_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    divisor_of = objective.divisor_of
    monkeypatch.setattr(objective, "divisor_of", lambda loss_fn: asked.append(loss_fn) or divisor_of(loss_fn))
    first, second = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum")
    made = trainer(batches(4, 4, 4), max_duration="2ep", loss_fn=first, loggers=Memory())
    made.fit("1ep")
    made.state.loss_fn = second
    made.fit()
    assert asked == [first, second]
