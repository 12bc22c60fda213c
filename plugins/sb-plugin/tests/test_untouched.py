"""What scoring must not touch. Each test fails with the naive way: a bare forward under no_grad in train mode."""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Objective
from sb_plugin import select_using_loss
from sb_plugin.scoring import score

X, Y = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 4


def net(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))


def select(model: Callable[..., Any], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return select_using_loss(X, Y, model, F.cross_entropy, generator=torch.Generator().manual_seed(seed))


def scores(model: Callable[..., Any], seed: int = 0) -> torch.Tensor:
    return score(Objective(F.cross_entropy), model, (X, Y), seed)[0]


class Raises(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of order")


class Codebook(nn.Module):
    """A module that counts in a buffer, and replaces another one, as moving averages do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("nothing", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.shape[0]
        self.average = 0.9 * self.average + 0.1 * x.mean((0, 2, 3))
        return x


class OwnNorm(nn.BatchNorm2d):
    """A custom BatchNorm, which ignores the flag."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, True, 0.1)


RECORDING = {
    "BatchNorm": lambda: nn.BatchNorm2d(4),
    "BatchNorm with a cumulative average": lambda: nn.BatchNorm2d(4, momentum=None),
    "InstanceNorm": lambda: nn.InstanceNorm2d(4, track_running_stats=True),
    "own BatchNorm": lambda: OwnNorm(4),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Conv2d(4, 4, 1)),
    "codebook": Codebook,
}


@pytest.mark.parametrize("layer", RECORDING.values(), ids=RECORDING)
def test_every_buffer_is_bit_equal(layer: Callable[[], nn.Module]) -> None:
    model = net(layer())
    model(X)  # moves them off their first values
    buffers = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    select(model)
    assert len(buffers) >= 2
    for name, buffer in model.named_buffers():
        assert buffer is buffers[name][0]
        assert torch.equal(buffer, buffers[name][1]), name


@pytest.mark.parametrize("layer", RECORDING.values(), ids=RECORDING)
def test_every_buffer_is_bit_equal_when_scoring_raises(layer: Callable[[], nn.Module]) -> None:
    model = net(layer(), Raises())
    before = copy.deepcopy(model.state_dict())
    flags = {name: dict(vars(module)) for name, module in model.named_modules()}
    with pytest.raises(RuntimeError, match="out of order"):
        select(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for name, module in model.named_modules():
        for flag in ("training", "track_running_stats"):
            assert vars(module).get(flag) == flags[name].get(flag)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: lambda x: model(x) * 1,
        lambda model: model.forward,
        lambda model: torch.compile(model, backend="eager"),
        nn.Sequential,
    ],
    ids=["lambda", "bound method", "compiled", "wrapped"],
)
def test_buffers_are_bit_equal_behind_any_callable(wrap: Callable[[nn.Module], Callable[..., Any]]) -> None:
    model = net(nn.BatchNorm2d(4), Codebook())
    before = copy.deepcopy(model.state_dict())
    select(wrap(model))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_buffers_of_the_module_behind_a_bound_method_are_bit_equal() -> None:
    norm = nn.BatchNorm2d(3)
    before = copy.deepcopy(norm.state_dict())
    select_using_loss(X, Y, norm.forward, lambda outputs, _, reduction: outputs.flatten(1).mean(1))
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_buffers_of_a_scripted_model_are_bit_equal() -> None:
    model = torch.jit.script(net(nn.BatchNorm2d(4)))
    before = copy.deepcopy(model.state_dict())
    select(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_scores_are_the_losses_of_a_forward_in_train_mode() -> None:
    model = net(nn.BatchNorm2d(4))
    expected = F.cross_entropy(copy.deepcopy(model)(X), Y, reduction="none")
    in_eval_mode = F.cross_entropy(copy.deepcopy(model).eval()(X), Y, reduction="none")
    assert torch.equal(scores(model), expected)
    assert not torch.allclose(expected, in_eval_mode)


def test_a_norm_that_was_frozen_for_training_scores_with_its_running_statistics() -> None:
    model = net(nn.BatchNorm2d(4))
    model[1].eval()
    expected = F.cross_entropy(model(X), Y, reduction="none")
    assert torch.equal(scores(model), expected)
    assert [module.training for module in model] == [True, False, True, True, True]


def test_training_flags_stay_as_they_were() -> None:
    model = net(nn.BatchNorm2d(4), nn.Dropout(), nn.BatchNorm2d(4)).train()
    model[2].eval()
    model[3].eval()
    before = [(module.training, getattr(module, "track_running_stats", None)) for module in model.modules()]
    select(model)
    assert [(m.training, getattr(m, "track_running_stats", None)) for m in model.modules()] == before


class Switching(nn.Module):
    """A forward that sets the mode: of a child before it is called, then of all."""

    def __init__(self, *last: nn.Module) -> None:
        super().__init__()
        self.d, self.norm, self.net = nn.Dropout(), nn.BatchNorm2d(3).eval(), net(*last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.norm.train()
        x = self.norm(self.d.eval()(x))
        return self.eval().net(x)


@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: lambda x: model(x) * 1], ids=["module", "lambda"])
@pytest.mark.parametrize("last", [nn.Identity, Raises], ids=["ends", "raises"])
def test_modes_and_buffers_are_back_where_the_forward_sets_the_mode(
    wrap: Callable[[nn.Module], Callable[..., Any]], last: Callable[[], nn.Module]
) -> None:
    model = Switching(last())
    before = [module.training for module in model.modules()]
    buffers = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="out of order") if last is Raises else nullcontext():
        select(wrap(model))
    assert [module.training for module in model.modules()] == before
    assert all(torch.equal(value, buffers[name]) for name, value in model.state_dict().items())


def test_dropout_in_scoring_draws_nothing_from_the_global_generator() -> None:
    model = net(nn.Dropout(0.5))
    before = torch.get_rng_state()
    select(model)
    assert torch.equal(torch.get_rng_state(), before)


def test_generators_are_back_when_scoring_raises() -> None:
    model = net(nn.Dropout(0.5), Raises())
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="out of order"):
        select(model)
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_in_scoring_is_on_and_follows_its_own_seed() -> None:
    model = net(nn.Dropout(0.5))
    torch.manual_seed(1)
    once = scores(model, seed=5)
    torch.manual_seed(2)
    assert torch.equal(scores(model, seed=5), once)
    assert not torch.equal(scores(model, seed=6), once)
    assert not torch.equal(scores(model.eval(), seed=5), once)


def test_dropout_differs_from_one_scoring_to_the_next() -> None:
    """Rows of equal loss but for dropout: the same masks each time would keep the same rows."""
    model, x = nn.Sequential(nn.Dropout(0.5), nn.Flatten()), torch.ones(16, 32)
    generator = torch.Generator().manual_seed(0)
    masks: list[torch.Tensor] = []
    model.register_forward_hook(lambda module, inputs, outputs: masks.append(outputs.clone()))
    for _ in range(2):
        select_using_loss(x, torch.zeros(16, dtype=torch.long), model, F.cross_entropy, generator=generator)
    assert not torch.equal(*masks)


class DrawsEverywhere(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + random.random() + np.random.rand() + np.random.randn())


@pytest.fixture
def numpy_draws_with() -> Iterator[Callable[[np.random.BitGenerator], None]]:
    """Return what sets the generator below NumPy's global one, until the test ends."""
    usual = np.random.get_bit_generator()
    yield np.random.set_bit_generator
    np.random.set_bit_generator(usual)


@pytest.mark.parametrize("generator", [np.random.MT19937, np.random.PCG64])
def test_generators_of_python_and_numpy_are_untouched(numpy_draws_with: Any, generator: Any) -> None:
    numpy_draws_with(generator(1))
    np.random.randn()  # leaves a second normal number waiting
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    select(net(DrawsEverywhere()))
    assert random.getstate() == python
    np.testing.assert_equal(np.random.get_state(legacy=False), numpy)


def test_gradients_and_requires_grad_are_untouched() -> None:
    model = net(nn.BatchNorm2d(4))
    F.cross_entropy(model(X), Y).backward()
    model[0].bias.requires_grad_(False)
    before = [(p.requires_grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()]
    select(model)
    for parameter, (wanted, grad) in zip(model.parameters(), before, strict=True):
        assert parameter.requires_grad is wanted
        assert torch.equal(parameter.grad, grad)


def test_scoring_builds_no_graph() -> None:
    model, seen = net(), []
    model.register_forward_hook(lambda module, inputs, outputs: seen.append(outputs.requires_grad))
    select(model)
    assert seen == [False]


def test_no_graph_is_kept_even_if_the_model_turns_gradients_on() -> None:
    class Stubborn(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                return x * torch.ones((), requires_grad=True)

    model = net(Stubborn())
    assert scores(model).requires_grad is False
    assert select(model)[0].requires_grad is False


def test_gradients_flow_to_inputs_that_want_them() -> None:
    x = X.clone().requires_grad_()
    rows, _ = select_using_loss(x, Y, net(), F.cross_entropy)
    rows.sum().backward()
    assert x.grad is not None
    assert sorted(x.grad.flatten(1).mean(1).tolist()) == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_graph_made_before_scoring_can_still_run_backward() -> None:
    """Writing to a buffer that did not change would break it."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.ones(6, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.mask

    model = nn.Sequential(Masked(), net())
    loss = F.cross_entropy(model(X.clone().requires_grad_()), Y)
    select(model)
    loss.backward()
    assert model[1][0].weight.grad is not None


def test_the_loss_module_stays_as_it_was() -> None:
    loss = nn.CrossEntropyLoss(weight=torch.ones(4), label_smoothing=0.1)
    before = dict(vars(loss))
    select_using_loss(X, Y, net(), loss)
    assert vars(loss) == before
    assert loss.reduction == "mean"
