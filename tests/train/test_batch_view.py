"""A view of a model takes whole batches, and is the model in all else."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State, Trainer
from engine_core.embed import batch_view
from engine_core.errors import ArgumentError
from engine_core.surgery import replace_modules


class Classifier(nn.Module):
    """Takes keywords, and has a module of each kind that surgery and modes concern."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5))
        self.head = nn.Linear(4, 2)

    def forward(self, *, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.head(self.body(x) * mask)
        return hidden


def _loss(outputs: torch.Tensor, batch: Mapping[str, torch.Tensor], reduction: str = "mean") -> torch.Tensor:
    return F.cross_entropy(outputs, batch["y"], reduction=reduction)


def _call(call: Any, batch: Mapping[str, torch.Tensor]) -> Any:
    return call(x=batch["x"], mask=batch["mask"])


def view_of(model: nn.Module) -> Any:
    return batch_view(model, _call, _loss)


def batches() -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    each = [(torch.randn(4, 3), torch.randint(0, 2, (4, 4)), torch.randint(0, 2, (4,))) for _ in range(3)]
    return [{"x": x, "mask": mask, "y": y} for x, mask, y in each]


def model() -> Classifier:
    torch.manual_seed(1)
    return Classifier()


def test_it_is_called_with_a_batch_and_computes_what_the_model_computes() -> None:
    net, (batch, *_) = model().eval(), batches()
    outputs = view_of(net)(batch)
    assert torch.equal(outputs, net(x=batch["x"], mask=batch["mask"]))
    assert view_of(net).loss(outputs, batch, reduction="none").shape == (4,)
    assert torch.equal(view_of(net).loss(outputs, batch), _loss(outputs, batch))


def test_names_mode_surgery_and_hooks_are_the_models_own() -> None:
    net, (batch, *_), seen = model(), batches(), []
    view = view_of(net)
    assert [name for name, _ in view.named_parameters()] == [name for name, _ in net.named_parameters()]
    assert isinstance(view, Classifier)
    assert type(view).__name__ == "Classifier"
    view.eval()
    assert not net.training
    assert not net.body.training
    replace_modules(view, {nn.Dropout: lambda module, index: nn.Identity()})
    assert isinstance(net.body[1], nn.Identity)
    net.register_forward_hook(lambda *_: seen.append("hook"))
    view(batch)
    net.to(torch.float64)
    assert seen == ["hook"]
    assert view.head.weight.dtype == torch.float64


def test_a_copy_calls_the_copy() -> None:
    net, (batch, *_) = model().eval(), batches()
    twin = copy.deepcopy(view_of(net))
    before = twin(batch)
    with torch.no_grad():
        net.head.weight.zero_()
    assert torch.equal(twin(batch), before)


def test_a_forward_that_was_set_on_the_object_is_called() -> None:
    net, (batch, *_) = model(), batches()
    vars(net)["forward"] = lambda **_: "mine"
    assert view_of(net)(batch) == "mine"


def test_a_model_with_a_loss_of_its_own_is_refused_another() -> None:
    net = model()
    net.loss = nn.MSELoss()
    with pytest.raises(ArgumentError, match="Classifier has an attribute 'loss', which the loss given would hide"):
        view_of(net)
    batch_view(net, _call)


class RowLosses(Algorithm):
    """Asks for the loss of each row."""

    metadata = AlgorithmMetadata(events=[Event.AFTER_LOSS])

    def __init__(self) -> None:
        self.rows: list[int] = []

    def match(self, event: Event, state: State) -> bool:
        return True

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        net: Any = state.model
        self.rows.append(len(net.loss(state.outputs, state.batch, reduction="none")))


def test_the_trainer_trains_it_as_a_loop_trains_the_model() -> None:
    net, rows, bare = model(), RowLosses(), model()
    net.body[1].p = bare.body[1].p = 0.0
    trainer = Trainer(
        view_of(net),
        batches(),
        optimizers=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        algorithms=[rows],
        max_duration="2ep",
        progress_bar=False,
        seed=3,
    )
    trainer.fit()
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.1)
    for batch in batches() * 2:
        optimizer.zero_grad()
        _loss(bare(x=batch["x"], mask=batch["mask"]), batch).backward()
        optimizer.step()
    assert rows.rows == [4] * 6
    for name, value in bare.state_dict().items():
        assert torch.equal(value, net.state_dict()[name]), name
