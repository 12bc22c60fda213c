"""ChannelsLast: strides to the letter, the same results and parameters, optimizers that follow, refused norms."""

import copy
import subprocess
import sys

import pytest
import torch
from parts import trainer
from surgery_parts import run_init, train_on_digits
from torch import nn
from torch.nn import functional as F

from engine_core import Trainer
from engine_core.errors import ArgumentError
from surgery_plugin import ChannelsLast, apply_channels_last


class Net(nn.Module):
    """Has tensors of all kinds: pointwise, depthwise and one-channel convolutions, other ranks, a buffer, a tie."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.pointwise = nn.Conv2d(6, 4, 1)
        self.up = nn.ConvTranspose2d(4, 4, 2)
        self.register_buffer("mask", torch.rand(1, 4, 9, 9))
        self.line = nn.Conv1d(4, 4, 3)
        self.last = nn.Linear(4, 10)
        self.tied = self.first

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = self.up(torch.relu(self.pointwise(self.depthwise(x)))) * self.mask
        return self.last(self.line(x.flatten(2)).mean(2))


NAMES = ["first.weight", "depthwise.weight", "pointwise.weight", "up.weight", "mask"]
STRIDES = {
    "first.weight": (9, 1, 3, 1),  # of (6, 1, 3, 3)
    "depthwise.weight": (9, 1, 3, 1),  # of (6, 1, 3, 3)
    "pointwise.weight": (6, 1, 6, 6),  # of (4, 6, 1, 1)
    "up.weight": (16, 1, 8, 4),  # of (4, 4, 2, 2)
    "mask": (324, 1, 36, 4),  # of (1, 4, 9, 9)
}


def strides(model):
    return {name: value.stride() for name, value in model.state_dict().items() if name in NAMES}


def test_tensors_of_four_dimensions_get_the_strides_of_channels_last():
    model = Net()
    assert apply_channels_last(model) == NAMES
    assert strides(model) == STRIDES


def test_parameters_stay_the_same_objects_with_the_same_values_and_a_second_time_nothing_moves():
    model = Net()
    before, values = dict(model.named_parameters()), copy.deepcopy(model.state_dict())
    apply_channels_last(model)
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    places = [value.data_ptr() for value in model.state_dict().values()]
    assert apply_channels_last(model) == NAMES
    assert [value.data_ptr() for value in model.state_dict().values()] == places


def test_batches_need_not_be_converted_as_the_weight_decides():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1))
    x = torch.randn(2, 3, 12, 12)
    assert not model(x).is_contiguous(memory_format=torch.channels_last)
    apply_channels_last(model)
    assert x.is_contiguous()
    for count in range(1, 6):
        assert model[:count](x).is_contiguous(memory_format=torch.channels_last)


def test_lazy_parameters_and_volumes_are_left_as_they_are():
    """`Module.to(memory_format=torch.channels_last)` raises for volumes."""
    model = nn.Sequential(nn.Conv3d(2, 4, 3), nn.LazyConv2d(8, 3), nn.Conv2d(2, 4, 3))
    assert apply_channels_last(model) == ["2.weight"]
    assert model[0].weight.is_contiguous()


def test_copies_and_moves_and_loaded_weights_keep_the_format():
    model = Net()
    apply_channels_last(model)
    model.load_state_dict(Net().state_dict())
    assert strides(model) == strides(copy.deepcopy(model)) == strides(model.double()) == STRIDES


def test_on_digits_training_is_the_same_but_for_rounding_and_ends_in_the_format():
    plain, model = Net(), Net()
    model.load_state_dict(plain.state_dict())
    momentum = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)  # noqa: E731
    train_on_digits(plain, optimizers=momentum)
    trainer = train_on_digits(model, ["channels_last"], optimizers=momentum)
    assert strides(model) == STRIDES
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name], rtol=1e-3, atol=1e-4)
    held = trainer.state.optimizers[0].state[model.up.weight]["momentum_buffer"]
    assert held.is_contiguous(memory_format=torch.channels_last)


OPTIMIZERS = {
    "fused Adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.1, amsgrad=True, fused=True),
    "fused SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
}


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.linspace(-1, 1, 54).view(2, 3, 3, 3)).square().sum().backward()
    optimizer.step()


def start_a_trainer(model, optimizer):
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
def test_an_optimizer_that_has_made_steps_makes_the_same_ones_afterwards(kind, operate):
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


def test_a_gradient_that_waits_for_its_step_is_laid_out_too():
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


def test_what_has_not_the_shape_of_the_parameter_stays():
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


def fit(model, size=6, layout=torch.contiguous_format, **settings):
    """Train on three batches of images with four channels."""
    data = [(torch.randn(4, 4, size, size).to(memory_format=layout), torch.randn(4, 4)) for _ in range(3)]
    given = {"max_duration": "1ep", "loss_fn": lambda y, t: F.mse_loss(y.flatten(2).mean(2), t), "device": "cpu"}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Trainer(model, data, optimizers=optimizer, algorithms=ChannelsLast(), **{**given, **settings}) as trainer:
        trainer.fit()
    return trainer


def conv(*, trains=True, size=3):
    return nn.Conv2d(4, 4, size).requires_grad_(trains)


def norm(*, trains=True):
    return nn.GroupNorm(2, 4).requires_grad_(trains)


class FrozenPart(nn.Module):
    """Its first part runs without gradients, though it could train."""

    def __init__(self, size=3):
        super().__init__()
        self.frozen, self.norm, self.last = conv(size=size), norm(), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        with torch.no_grad():
            x = self.frozen(x)
        return self.last(self.norm(x))


class DefinedFirst(nn.Module):
    """Its norm is defined first, and used behind a convolution that trains."""

    def __init__(self):
        super().__init__()
        self.norm, self.conv = norm(), conv()

    def forward(self, x):
        return self.norm(self.conv(x))


class Contiguous(FrozenPart):
    """In another format, of which the check is not."""

    def forward(self, x):
        return self.last(self.norm(self.frozen(x).detach().contiguous()))


REFUSED = {
    "the first layer": (lambda: nn.Sequential(norm(), conv()), "0"),
    "behind what the user froze": (lambda: nn.Sequential(conv(trains=False), nn.Sequential(norm(), conv())), "1.0"),
    "behind what runs without gradients": (FrozenPart, "norm"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_norm_that_would_crash_is_refused_by_name_before_anything_is_trained(kind):
    make, name = REFUSED[kind]
    model = make()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(ArgumentError) as refused:
        fit(model, layout=torch.channels_last)
    assert str(refused.value) == (
        f"channels_last: the GroupNorm {name!r} trains, and its input needs no gradient; on a CPU, torch crashes in "
        f"the backward pass of such a norm in this memory format: freeze {name!r} too, train a layer before it, or "
        "leave out channels_last"
    )
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(not module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(conv(), norm(), conv()),
        lambda: nn.Sequential(conv(trains=False), norm(trains=False), conv(), norm()),
        lambda: nn.Sequential(norm(), conv()),
        DefinedFirst,
        Contiguous,
        lambda: nn.Sequential(conv(trains=False), nn.GroupNorm(2, 4, affine=False), conv()),
    ],
)
def test_all_others_train_and_keep_no_hook(make):
    model = make()
    trainer = fit(model, eval_dataloader=[(torch.randn(4, 4, 6, 6), torch.randn(4, 4))], size=8)
    assert trainer.state.timestamp.batch == 3
    assert all(not module._forward_pre_hooks for module in model.modules())


@pytest.mark.full
def test_torch_crashes_where_it_is_refused():
    """If this fails, torch has mended its fault, and what this file tests can go."""
    code = (
        "import torch\n"
        "x = torch.randn(4, 4, 6, 6).to(memory_format=torch.channels_last)\n"
        "torch.nn.GroupNorm(2, 4)(x).sum().backward()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode < 0
