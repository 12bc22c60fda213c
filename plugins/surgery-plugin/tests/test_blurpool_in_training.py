"""BlurPool as an algorithm: in a custom engine, in the Trainer, on digits, with others."""

import copy
from typing import Any

import pytest
import torch
from surgery_parts import digits, run_init, train_on_digits
from torch import nn
from torch.nn import functional as F

from engine_core import Trainer
from engine_core.errors import NothingReplacedWarning
from surgery_plugin import BlurConv2d, BlurMaxPool2d, BlurPool, SqueezeExcite, SqueezeExciteConv2d, apply_blurpool


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(288, 10),
    )


def padded_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (1797, 1, 12, 12), with room to be shifted, and classes, in a random order."""
    x, y = digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    return F.pad(x, (2, 2, 2, 2))[order], y[order]


def train(model: nn.Module, algorithms: Any = (), *, epochs: int = 8, **settings: Any) -> Trainer:
    settings.setdefault("optimizers", lambda parameters: torch.optim.Adam(parameters, lr=1e-3))
    return train_on_digits(model, algorithms, images=padded_digits(), max_duration=f"{epochs}ep", **settings)


@torch.no_grad()
def sensitivity(model: nn.Module, x: torch.Tensor) -> float:
    """Return how far outputs move under a shift by one pixel, relative to how far they lie apart."""
    model.eval()
    outputs = model(x)
    moved = (model(x.roll(1, -1)) - outputs).norm(dim=1).mean()
    return float(moved / (outputs - outputs.mean(0)).norm(dim=1).mean())


@torch.no_grad()
def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    return float((model.eval()(x).argmax(1) == y).float().mean())


@pytest.mark.parametrize("kind", [nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.Conv2d(16, 8, 1, 2)])
def test_layers_of_random_nets_change_less_under_a_shift(kind: nn.Module) -> None:
    """Of smooth inputs, the values two pixels apart: shifted by one pixel they are others, blurred less so."""
    x = F.avg_pool2d(torch.randn(64, 16, 36, 36), 5, 1)
    plain, blurred = nn.Sequential(kind), nn.Sequential(copy.deepcopy(kind))
    apply_blurpool(blurred)
    assert sensitivity(blurred, x) < 0.9 * sensitivity(plain, x)


@pytest.mark.full
def test_nets_trained_on_digits_change_less_under_a_shift() -> None:
    """The documented effect: half the sensitivity, for two percent of accuracy on these tiny images."""
    x, y = (part[1200:] for part in padded_digits())
    plain, blurred = net(), net()
    train(plain)
    train(blurred, BlurPool())
    assert accuracy(plain, x, y) > 0.95 and accuracy(blurred, x, y) > 0.92
    assert sensitivity(blurred, x) < 0.7 * sensitivity(plain, x)


def test_a_model_that_is_moved_after_init_keeps_everything() -> None:
    model = net()
    weights, optimizer = model[4].weight, torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = train(model, ["blurpool"], epochs=1, optimizers=optimizer)
    assert trainer.state.model is model and model[4].weight is weights
    assert [type(model[3]), type(model[4])] == [BlurMaxPool2d, BlurConv2d]
    assert {id(p) for p in optimizer.param_groups[0]["params"]} == {id(p) for p in model.parameters()}
    model.double()
    assert model(torch.randn(2, 1, 12, 12, dtype=torch.float64)).dtype is torch.float64


CONVS = "Conv2d of 16 or more input channels with a stride"
POOLS = "MaxPool2d with a stride"


@pytest.mark.parametrize(
    ("settings", "missed"),
    [
        ({}, f"{CONVS} or {POOLS}"),
        ({"replace_convs": False}, POOLS),
        ({"replace_maxpools": False}, CONVS),
    ],
)
def test_a_model_without_what_is_looked_for_causes_a_warning_by_name(settings: dict[str, Any], missed: str) -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2))
    with pytest.warns(NothingReplacedWarning, match=f"^blurpool changed nothing: the model has no {missed}$"):
        assert run_init(model, BlurPool(**settings)) == [{"blurpool/replaced": 0}]


@pytest.mark.parametrize("step", [1, -1])
def test_with_squeeze_excite_it_comes_first_in_both_orders_of_the_list(step: int) -> None:
    expected, model, x = net(), net(), torch.randn(3, 1, 12, 12)
    run_init(expected, BlurPool())
    run_init(expected, SqueezeExcite(16, 4))
    run_init(model, *[BlurPool(), SqueezeExcite(16, 4)][::step])
    assert isinstance(model[4], SqueezeExciteConv2d) and isinstance(model[4].conv, BlurConv2d)
    assert list(model.state_dict()) == list(expected.state_dict())
    assert torch.equal(model(x), expected(x))


@pytest.mark.full
def test_a_model_compiled_afterwards_computes_the_same_in_one_graph() -> None:
    model, x = net(), torch.randn(3, 1, 12, 12)
    apply_blurpool(model)
    torch.compiler.reset()
    compiled = torch.compile(model.eval(), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))
    torch.compiler.reset()
