"""Losses that MixUp and CutMix can't reach, as of a model that computes its loss in the forward, are an error."""

from typing import Any

import pytest
import torch
from augmentation_parts import BOTH, FORMS
from torch import nn
from torch.nn import functional as F

from augmentation_plugin.mixing import Mixing
from engine_core import Engine, Logger, Loss, ModelLoss, State, Trainer
from engine_core.errors import ArgumentError

ROWS = 6
IMAGES, CLASSES = torch.randn(ROWS, 2, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(ROWS) % 3


class Net(nn.Module):
    """Gets the whole batch and returns logits and a loss, as models of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(128, 3)

    def forward(self, batch: Any) -> Any:
        logits = self.linear(batch["x"].flatten(1))
        return {"logits": logits, "loss": F.cross_entropy(logits, batch["y"])}

    def loss(self, outputs: Any, batch: Any) -> Any:
        return outputs["loss"]


class ByName(Net):
    def forward(self, **batch: Any) -> Any:
        return super().forward(batch)


class InParts(Net):
    def loss(self, outputs: Any, batch: Any) -> Any:
        return {"ce": outputs["loss"]}


class Counted(Net):
    def loss(self, outputs: Any, batch: Any) -> Any:
        return Loss(outputs["loss"], None)


class FromLogits(Net):
    """Computes its loss where it should, next to a part that the forward computes."""

    def loss(self, outputs: Any, batch: Any) -> Any:
        return {"own": F.cross_entropy(outputs["logits"], batch["y"]), "of the forward": outputs["loss"]}


def fit(model: nn.Module, mixing: Mixing, objective: Any = None) -> Any:
    options: dict[str, Any] = {"optimizers": torch.optim.SGD(model.parameters(), lr=0.1), "max_duration": "1ba"}
    batch = {"x": IMAGES, "y": CLASSES}
    with Trainer(model, [batch], algorithms=mixing, seed=1, objective=objective, **options) as trainer:
        trainer.fit()
        return trainer.state


@FORMS
@pytest.mark.parametrize("net", [Net, InParts, Counted, ByName])
def test_a_loss_out_of_the_forward_is_an_error(kind: type[Mixing], interpolate_loss: bool, net: type[Net]) -> None:
    objective = ModelLoss(targets="y") if net is ByName else None
    with pytest.raises(ArgumentError, match=r"one of the model's outputs.*compute it in loss\(outputs, batch\)"):
        fit(net(), kind(1.0, interpolate_loss, "x", "y"), objective)


@FORMS
def test_one_part_of_a_loss_may_come_out_of_the_forward(kind: type[Mixing], interpolate_loss: bool) -> None:
    assert fit(FromLogits(), kind(1.0, interpolate_loss, "x", "y")).loss.isfinite()


@pytest.mark.parametrize(
    ("keys", "words"),
    [({"target_key": 2}, "target_key=2 is not item 1.*targets of the loss: set target_key=1"),
     ({"input_key": 2}, "input_key=2 is not item 0.*inputs of the model: set input_key=0")],
)  # fmt: skip
@FORMS
def test_keys_that_are_not_what_a_loss_function_gets_are_refused(
    kind: type[Mixing], keys: Any, words: str, interpolate_loss: bool
) -> None:
    state = State(algorithms=[kind(interpolate_loss=interpolate_loss, **keys)], loss_fn=F.cross_entropy)
    state.batch = IMAGES, CLASSES, IMAGES.clone() if "input_key" in keys else CLASSES.clone()
    with Engine(state, Logger()) as engine, pytest.raises(ArgumentError, match=words):
        engine.run_event("after_dataloader")


@BOTH
def test_a_loop_that_never_checks_gets_a_clear_error_without_a_loss_function(kind: type[Mixing]) -> None:
    state = State(model=nn.Identity(), algorithms=[kind(1.0, True)], seed=1, batch=(IMAGES, CLASSES))
    state.outputs = torch.zeros(ROWS, 3)
    with Engine(state, Logger()) as engine, pytest.raises(ArgumentError, match="Identity has no loss"):
        for event in ("before_forward", "after_forward", "before_loss"):
            engine.run_event(event)
        state.loss = torch.zeros(())
        engine.run_event("after_loss")


@BOTH
def test_two_of_a_kind_are_refused(kind: type[Mixing]) -> None:
    with pytest.raises(Exception, match="can't run together"):
        Engine(State(algorithms=[kind(), kind()]), Logger())


class Mine(nn.NLLLoss):
    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return -(targets * outputs).sum(1).mean()


@BOTH
def test_a_subclass_with_its_own_formula_is_believed_to_take_mixtures(kind: type[Mixing]) -> None:
    state = State(algorithms=[kind()], loss_fn=Mine(weight=torch.ones(3)), batch=(IMAGES, CLASSES))
    with Engine(state, Logger()) as engine:
        engine.run_event("after_dataloader")
