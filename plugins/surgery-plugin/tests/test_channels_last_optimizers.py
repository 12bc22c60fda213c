"""ChannelsLast on a model in the middle of its training: what optimizers hold of parameters follows."""

import copy
from typing import Any

import pytest
import torch
from parts import trainer
from surgery_parts import run_init
from torch import nn

from surgery_plugin import ChannelsLast, apply_channels_last

OPTIMIZERS: dict[str, Any] = {
    "fused Adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.1, amsgrad=True, fused=True),
    "fused SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
}


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.linspace(-1, 1, 54).view(2, 3, 3, 3)).square().sum().backward()
    optimizer.step()


def start_a_trainer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    trainer([torch.randn(2, 3, 3, 3)], model, optimizers=optimizer, algorithms="channels_last").close()


@pytest.mark.parametrize(
    ("kind", "operate"),
    [
        ("fused Adam", lambda model, optimizer: apply_channels_last(model, optimizers=[optimizer])),
        ("fused SGD", lambda model, optimizer: run_init(model, ChannelsLast(), optimizers=optimizer)),
        ("fused Adam", start_a_trainer),
        ("SGD", start_a_trainer),
    ],
)
def test_an_optimizer_that_has_made_steps_makes_the_same_ones_afterwards(kind: str, operate: Any) -> None:
    """Fused ones read values by their position in memory, so weights and momenta need the same layout."""
    plain = nn.Sequential(nn.Conv2d(3, 4, 3))
    model = copy.deepcopy(plain)
    one, other = OPTIMIZERS[kind](plain), OPTIMIZERS[kind](model)
    step(plain, one)
    step(model, other)
    operate(model, other)
    for _ in range(2):
        step(plain, one)
        step(model, other)
    torch.testing.assert_close(model[0].weight, plain[0].weight, rtol=0, atol=1e-5)


def test_a_gradient_that_waits_for_its_step_is_laid_out_too() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 3))
    model = copy.deepcopy(plain)
    for net in (plain, model):
        net(torch.linspace(-1, 1, 54).view(2, 3, 3, 3)).square().sum().backward()
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.1, fused=True) for net in (plain, model)]
    apply_channels_last(model)
    assert model[0].weight.grad.is_contiguous(memory_format=torch.channels_last)
    for optimizer in optimizers:
        optimizer.step()
    torch.testing.assert_close(model[0].weight, plain[0].weight, rtol=0, atol=1e-6)


def test_what_has_not_the_shape_of_the_parameter_stays() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1))
    optimizer = torch.optim.Adam(model[:1].parameters(), lr=0.1)
    model[0](torch.randn(2, 3, 3, 3)).sum().backward()
    optimizer.step()
    before = {key: value.clone() for key, value in optimizer.state[model[0].weight].items()}
    apply_channels_last(model, optimizers=[optimizer])
    held = optimizer.state[model[0].weight]
    assert all(torch.equal(held[key], value) for key, value in before.items())
    assert held["exp_avg"].stride() == model[0].weight.stride() == (27, 1, 9, 3)
    assert set(optimizer.state) == set(model[0].parameters())
