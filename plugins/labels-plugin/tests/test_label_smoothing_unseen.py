"""A loss that can't see the smoothed targets is an error: one of the forward, or a key that is not the loss's."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Engine, Logger, ModelLoss, State, Trainer
from engine_core.errors import ArgumentError
from labels_plugin import LabelSmoothing

X, Y = torch.randn(8, 3, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 4


class Net(nn.Module):
    """Gets the whole batch and returns logits and a loss, as models of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, batch: Any) -> Any:
        logits = self.linear(batch["x"])
        return {"logits": logits, "loss": F.cross_entropy(logits, batch["y"])}

    def loss(self, outputs: Any, batch: Any) -> Any:
        return outputs["loss"]


class FromLogits(Net):
    def loss(self, outputs: Any, batch: Any) -> Any:
        return {"own": F.cross_entropy(outputs["logits"], batch["y"]), "of the forward": outputs["loss"]}


def fit(model: nn.Module, batch: Any, smoothing: float = 0.1, objective: Any = None) -> Any:
    options: dict[str, Any] = {"optimizers": torch.optim.SGD(model.parameters(), lr=0.1), "max_duration": "1ba"}
    algorithm = LabelSmoothing(smoothing, target_key="y")
    with Trainer(model, [batch], algorithms=algorithm, seed=1, objective=objective, **options) as trainer:
        try:
            trainer.fit()
        finally:
            assert trainer.state.batch is batch
        return trainer.state


class ByName(Net):
    def forward(self, **batch: Any) -> Any:
        return super().forward(batch)


@pytest.mark.parametrize(("net", "objective"), [(Net, None), (ByName, ModelLoss(targets="y"))])
def test_a_loss_out_of_the_forward_is_an_error(net: type[Net], objective: Any) -> None:
    batch = {"x": X, "y": Y}
    with pytest.raises(ArgumentError, match=r"one of the model's outputs.*compute it in loss\(outputs, batch\)"):
        fit(net(), batch, objective=objective)
    assert batch["y"] is Y
    fit(net(), batch, smoothing=0, objective=objective)


def test_one_part_of_a_loss_may_come_out_of_the_forward() -> None:
    assert fit(FromLogits(), {"x": X, "y": Y}).loss.isfinite()


@pytest.mark.parametrize("key", [2, -1])
def test_a_key_of_what_the_loss_function_does_not_get_is_refused(key: int) -> None:
    state = State(algorithms=[LabelSmoothing(target_key=key)], loss_fn=F.cross_entropy, batch=(X, Y, Y.clone()))
    message = f"target_key={key} is not item 1.*set target_key=1"
    with Engine(state, Logger()) as engine, pytest.raises(ArgumentError, match=message):
        engine.run_event("after_dataloader")
