"""GatedLinearUnits, FusedLayerNorm and StochasticDepth give the same in both orders of the user's list."""

import itertools
from typing import Any

import pytest
import torch
from parts import trainer
from torch import nn

from engine_core import Engine, Logger, State
from surgery_plugin import FusedLayerNorm, GatedLinearUnits, StochasticDepth

MAKERS: dict[str, Any] = {
    "gated": GatedLinearUnits,
    "fused": FusedLayerNorm,
    "sample": lambda: StochasticDepth(drop_rate=0.5),
    "batch": lambda: StochasticDepth(drop_rate=0.5, drop_per="batch"),
}
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
    algorithms = [MAKERS[name]() for name in names]
    with trainer(data, model, algorithms=algorithms, precision="amp_bf16", max_duration="2ep", seed=1) as run:
        run.fit()
    with torch.no_grad():
        return model.state_dict(), model.eval()(data[0][0])


@pytest.mark.parametrize("names", [("gated", "fused", "batch"), ("gated", "fused", "sample")], ids="-".join)
def test_all_orders_train_the_same_bit_for_bit(names) -> None:
    (weights, out), *others = [train(order) for order in itertools.permutations(names)]
    assert "encoder.layers.2.block.linear1.gate.weight" in weights
    for other, computed in others:
        assert list(weights) == list(other) and all(torch.equal(weights[key], other[key]) for key in weights)
        assert torch.equal(out, computed)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_blocks_come_after_the_layers_in_them_and_the_norms_last(order) -> None:
    with Engine(State(algorithms=[MAKERS[name]() for name in order]), Logger()) as engine:
        explained = [line.algorithm for line in engine.explain("init")]
    assert explained == ["GatedLinearUnits", "StochasticDepth", "FusedLayerNorm"]
