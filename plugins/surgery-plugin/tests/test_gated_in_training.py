"""GatedLinearUnits as an algorithm: seeds, optimizers, logs, and its effect on training on digits."""

from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from engine_core import Engine, Event, Logger, State, Trainer
from engine_core.errors import NothingReplacedWarning
from engine_core_author import RecordingDestination
from surgery_plugin import GatedLinearUnits


def make_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def surgery(model: nn.Module, seed: int = 3, **settings: Any) -> GatedLinearUnits:
    algorithm = GatedLinearUnits()
    with Engine(State(model=model, algorithms=[algorithm], seed=seed, **settings), Logger()) as engine:
        engine.run_event(Event.INIT)
    return algorithm


def test_the_seed_of_the_run_decides_on_the_new_weights() -> None:
    gates = []
    for seed in (3, 3, 4):
        model = make_model()
        before = torch.get_rng_state()
        surgery(model, seed)
        assert torch.equal(torch.get_rng_state(), before)
        gates.append(model[0].gate.weight)
    assert torch.equal(gates[0], gates[1])
    assert not torch.equal(gates[0], gates[2])


def test_an_optimizer_made_before_gets_the_new_parameters() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    surgery(model, optimizers=optimizer)
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert held == {id(parameter) for parameter in model.parameters()}
    gate = model[0].gate.weight.clone()
    F.cross_entropy(model(torch.randn(8, 64)), torch.arange(8)).backward()
    optimizer.step()
    assert not torch.equal(model[0].gate.weight, gate)


def test_a_model_without_such_parts_causes_a_warning_by_name() -> None:
    with pytest.warns(NothingReplacedWarning, match="gated_linear_units"):
        surgery(nn.Sequential(nn.Linear(4, 2)))


def test_a_second_run_on_a_gated_model_causes_no_warning() -> None:
    model = make_model()
    surgery(model)
    gate = model[0].gate.weight
    surgery(model, seed=9)
    assert model[0].gate.weight is gate


def digits() -> list[tuple[torch.Tensor, torch.Tensor]]:
    x, y = load_digits(return_X_y=True)
    images, targets = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    return list(zip(images[:1280].split(64), targets[:1280].split(64), strict=True))


def train(algorithms: list[Any], model: nn.Module) -> tuple[float, dict[str, Any]]:
    destination, data = RecordingDestination(), digits()
    with Trainer(
        model,
        data,
        max_duration="4ep",
        loss_fn=F.cross_entropy,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.5),
        algorithms=algorithms,
        loggers=[destination],
        device="cpu",
        seed=1,
    ) as trainer:
        trainer.fit()
    with torch.no_grad():
        loss = sum(F.cross_entropy(model(x), y).item() for x, y in data) / len(data)
    return loss, dict(item for _, metrics in destination.metrics for item in metrics.items())


def test_on_digits_the_gate_learns_and_the_training_differs() -> None:
    began, gated = make_model(), make_model()
    surgery(began, seed=1)
    loss, logged = train([GatedLinearUnits()], gated)
    without, _ = train([], make_model())
    assert logged["gated_linear_units/replaced"] == 1
    assert (gated[0].gate.weight - began[0].gate.weight).abs().max() > 0.1
    assert loss < 0.5
    assert loss != without
