"""GatedLinearUnits, FusedLayerNorm and StochasticDepth give the same in both orders of the user's list."""

import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Engine, Logger, State, Trainer
from surgery_plugin import FusedLayerNorm, GatedLinearUnits, StochasticDepth

MAKERS: dict[str, Any] = {
    "gated": GatedLinearUnits,
    "fused": FusedLayerNorm,
    "sample": lambda: StochasticDepth(drop_rate=0.5),
    "batch": lambda: StochasticDepth(drop_rate=0.5, drop_per="batch"),
}
PAIRS = [pair for pair in itertools.combinations(MAKERS, 2) if pair != ("sample", "batch")]

ORDERS = list(itertools.permutations(("gated", "fused", "sample")))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3)
        self.head = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x).mean(1))


def train(names: tuple[str, ...]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    torch.manual_seed(0)
    model, data = Net(), [(torch.randn(6, 5, 8), torch.randint(4, (6,))) for _ in range(4)]
    with Trainer(
        model,
        data,
        max_duration="2ep",
        loss_fn=F.cross_entropy,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        algorithms=[MAKERS[name]() for name in names],
        precision="amp_bf16",
        device="cpu",
        seed=1,
    ) as trainer:
        trainer.fit()
    with torch.no_grad():
        return model.state_dict(), model.eval()(data[0][0])


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_both_orders_train_the_same_bit_for_bit(pair) -> None:
    (weights, out), (others, other) = train(pair), train(pair[::-1])
    assert list(weights) == list(others)
    assert all(torch.equal(weights[key], others[key]) for key in weights)
    assert torch.equal(out, other)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_blocks_come_after_the_layers_in_them_and_the_norms_last(order) -> None:
    with Engine(State(algorithms=[MAKERS[name]() for name in order]), Logger()) as engine:
        explained = [line.algorithm for line in engine.explain("init")]
    assert explained == ["GatedLinearUnits", "StochasticDepth", "FusedLayerNorm"]


def test_all_three_train_the_same_in_any_order() -> None:
    runs = [train(order) for order in ORDERS]
    assert all(torch.equal(out, runs[0][1]) for _, out in runs)
    assert "encoder.layers.2.block.linear1.gate.weight" in runs[0][0]
