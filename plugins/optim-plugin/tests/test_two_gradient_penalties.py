"""Two instances of GradientPenalty in one run: each is of the loss as it was without them."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Algorithm, Trainer
from optim_plugin import GradientPenalty

Batch = dict[str, torch.Tensor]
WEIGHTS = {"x": 0.5, "z": 0.2}


class Product(nn.Module):
    """Has two inputs whose slopes depend on each other, and its own loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.ModuleDict({key: nn.Linear(4, 3) for key in "xz"}).double()

    def forward(self, batch: Batch) -> torch.Tensor:
        return torch.tanh(self.net["x"](batch["x"])) * torch.tanh(self.net["z"](batch["z"]))

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return F.cross_entropy(outputs, batch["y"])


def make_batch() -> Batch:
    generator = torch.Generator().manual_seed(5)
    inputs = {key: torch.randn(6, 4, generator=generator).double() for key in "xz"}
    return {**inputs, "y": torch.randint(0, 3, (6,), generator=generator)}


def train(algorithms: Sequence[Algorithm], **settings: Any) -> tuple[float, list[torch.Tensor]]:
    """Return the loss of one step and its gradients."""
    model = Product()
    given = {"max_duration": "1ba", "optimizers": torch.optim.SGD(model.parameters(), lr=0.1), "device": "cpu"}
    with Trainer(model, [make_batch()], algorithms=algorithms, progress_bar=False, **given, **settings) as trainer:
        trainer.fit()
    return trainer.state.loss.item(), [p.grad for p in model.parameters() if p.grad is not None]


def train_by_hand(keys: Sequence[str]) -> tuple[float, list[torch.Tensor]]:
    model, batch = Product(), make_batch()
    watched = [batch[key].requires_grad_() for key in keys]
    loss = model.loss(model(batch), batch)
    slopes = torch.autograd.grad(loss, watched, create_graph=True)
    for key, slope in zip(keys, slopes, strict=True):
        loss = loss + WEIGHTS[key] * 6 * slope.square().sum()
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(("keys", "size"), [("x", None), ("xz", None), ("zx", 4), ("xzx", 4)])
def test_each_adds_the_penalty_of_the_plain_loss_in_whichever_order(keys: str, size: int | None) -> None:
    loss, gradients = train([GradientPenalty(WEIGHTS[key], key) for key in keys], microbatch_size=size)
    expected_loss, expected = train_by_hand(keys)
    assert loss == pytest.approx(expected_loss, abs=1e-12)
    assert all(torch.allclose(one, other, rtol=0, atol=1e-12) for one, other in zip(gradients, expected, strict=True))
