"""BlurPool as an algorithm: in a custom engine, in the Trainer, on digits, with others."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from engine_core import Engine, Event, Logger, State, Trainer
from engine_core.errors import NothingReplacedWarning
from engine_core_author import RecordingDestination
from surgery_plugin import BlurConv2d, BlurMaxPool2d, BlurPool, SqueezeExcite, SqueezeExciteConv2d, apply_blurpool

SEEDS = (0, 1)


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
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


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (1797, 1, 12, 12), with room to be shifted, and classes, in a random order."""
    data: Any = load_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    return F.pad(images, (2, 2, 2, 2))[order], torch.tensor(data.target)[order]


def train(model: nn.Module, algorithms: Any = (), *, epochs: int = 8, **settings: Any) -> Trainer:
    x, y = digits()
    loader = list(zip(x[:1200].split(60), y[:1200].split(60), strict=True))
    given = {"loss_fn": F.cross_entropy, "device": "cpu", "seed": 1, "max_duration": f"{epochs}ep", **settings}
    given.setdefault("optimizers", lambda parameters: torch.optim.Adam(parameters, lr=1e-3))
    with Trainer(model, loader, algorithms=algorithms, **given) as trainer:
        trainer.fit()
    return trainer


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
@pytest.mark.parametrize("seed", SEEDS)
def test_nets_trained_on_digits_change_less_under_a_shift(seed: int) -> None:
    """The documented effect: half the sensitivity, for two percent of accuracy on these tiny images."""
    x, y = (part[1200:] for part in digits())
    plain, blurred = net(seed), net(seed)
    train(plain)
    train(blurred, BlurPool())
    assert accuracy(plain, x, y) > 0.95 and accuracy(blurred, x, y) > 0.92
    assert sensitivity(blurred, x) < 0.7 * sensitivity(plain, x)


def test_in_a_custom_loop_an_optimizer_made_before_trains_the_layers() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = State(model=model, optimizers=optimizer, algorithms=[BlurPool()])
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.INIT)
    assert isinstance(model[3], BlurMaxPool2d) and isinstance(model[4], BlurConv2d)
    before = model[4].weight.detach().clone()
    F.cross_entropy(model(torch.randn(4, 1, 12, 12)), torch.arange(4)).backward()
    optimizer.step()
    assert not torch.equal(model[4].weight, before)


def test_a_model_that_is_moved_after_init_keeps_everything() -> None:
    model = net()
    weights, optimizer = model[4].weight, torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = train(model, ["blurpool"], epochs=1, optimizers=optimizer)
    assert trainer.state.model is model and model[4].weight is weights
    assert [type(model[3]), type(model[4])] == [BlurMaxPool2d, BlurConv2d]
    assert {id(p) for p in optimizer.param_groups[0]["params"]} == {id(p) for p in model.parameters()}
    model.double()
    assert model(torch.randn(2, 1, 12, 12, dtype=torch.float64)).dtype is torch.float64


def run_init(model: nn.Module, algorithms: list[Any], **fields: Any) -> RecordingDestination:
    destination = RecordingDestination()
    with Engine(State(model=model, algorithms=algorithms, **fields), Logger([destination])) as engine:
        engine.run_event(Event.INIT)
    return destination


def test_what_was_replaced_is_counted_in_the_log() -> None:
    assert run_init(net(), [BlurPool()]).metrics == [(0, {"blurpool/replaced": 2})]


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
        destination = run_init(model, [BlurPool(**settings)])
    assert destination.metrics == [(0, {"blurpool/replaced": 0})]


@pytest.mark.parametrize(
    "make", [lambda: [BlurPool(), SqueezeExcite(16, 4)], lambda: [SqueezeExcite(16, 4), BlurPool()]]
)
def test_with_squeeze_excite_it_comes_first_in_both_orders_of_the_list(make: Callable[[], list[Any]]) -> None:
    expected, model, x = net(), net(), torch.randn(3, 1, 12, 12)
    run_init(expected, [BlurPool()], seed=5)
    run_init(expected, [SqueezeExcite(16, 4)], seed=5)
    run_init(model, make(), seed=5)
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
