"""GatedLinearUnits as an algorithm: seeds, optimizers, logs, and its effect on training on digits."""

from typing import Any

import torch
from surgery_parts import digits, run_init, train_on_digits
from torch import nn
from torch.nn import functional as F

from surgery_plugin import GatedLinearUnits


def make_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def test_the_seed_of_the_run_decides_on_the_new_weights() -> None:
    gates = []
    for seed in (3, 3, 4):
        model = make_model()
        before = torch.get_rng_state()
        run_init(model, GatedLinearUnits(), seed=seed)
        assert torch.equal(torch.get_rng_state(), before)
        gates.append(model[0].gate.weight)
    assert torch.equal(gates[0], gates[1])
    assert not torch.equal(gates[0], gates[2])


def train(algorithms: list[Any], model: nn.Module) -> float:
    """Return the loss after four epochs."""
    images, targets = digits()[0][:1200].flatten(1), digits()[1][:1200]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    train_on_digits(model, algorithms, images=(images, targets), optimizers=optimizer, max_duration="4ep")
    with torch.no_grad():
        return F.cross_entropy(model(images), targets).item()


def test_on_digits_the_gate_learns_and_the_training_differs() -> None:
    began, gated = make_model(), make_model()
    run_init(began, GatedLinearUnits(), seed=1)
    loss = train([GatedLinearUnits()], gated)
    assert (gated[0].gate.weight - began[0].gate.weight).abs().max() > 0.1
    assert loss < 0.5
    assert loss != train([], make_model())
