"""ChannelsLast: strides to the letter, the same results, the same parameters."""

import copy

import pytest
import torch
from surgery_parts import run_init, train_on_digits
from torch import nn

from surgery_plugin import BlurPool, ChannelsLast, SqueezeExcite, apply_channels_last


class Net(nn.Module):
    """Has tensors of all kinds: pointwise, depthwise and one-channel convolutions, other ranks, a buffer, a tie."""

    def __init__(self) -> None:
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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
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


def strides(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: value.stride() for name, value in model.state_dict().items() if name in NAMES}


def test_tensors_of_four_dimensions_get_the_strides_of_channels_last() -> None:
    model = Net()
    assert apply_channels_last(model) == NAMES
    assert strides(model) == STRIDES


def test_parameters_stay_the_same_objects_with_the_same_values_and_a_second_time_nothing_moves() -> None:
    model = Net()
    before, values = dict(model.named_parameters()), copy.deepcopy(model.state_dict())
    apply_channels_last(model)
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    places = [value.data_ptr() for value in model.state_dict().values()]
    assert apply_channels_last(model) == NAMES
    assert [value.data_ptr() for value in model.state_dict().values()] == places


def test_outputs_and_gradients_are_the_same_but_for_rounding() -> None:
    plain, model, x = Net(), Net(), torch.randn(3, 1, 8, 8)
    model.load_state_dict(plain.state_dict())
    apply_channels_last(model)
    assert strides(model) == STRIDES
    torch.testing.assert_close(model(x), plain(x))
    for net in (model, plain):
        net(x).square().sum().backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_batches_need_not_be_converted_as_the_weight_decides() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1))
    x = torch.randn(2, 3, 12, 12)
    assert not model(x).is_contiguous(memory_format=torch.channels_last)
    apply_channels_last(model)
    assert x.is_contiguous()
    for count in range(1, 6):
        assert model[:count](x).is_contiguous(memory_format=torch.channels_last)


def test_lazy_parameters_and_volumes_are_left_as_they_are() -> None:
    """`Module.to(memory_format=torch.channels_last)` raises for volumes."""
    model = nn.Sequential(nn.Conv3d(2, 4, 3), nn.LazyConv2d(8, 3), nn.Conv2d(2, 4, 3))
    assert apply_channels_last(model) == ["2.weight"]
    assert model[0].weight.is_contiguous()


def test_copies_and_moves_and_loaded_weights_keep_the_format() -> None:
    model = Net()
    apply_channels_last(model)
    model.load_state_dict(Net().state_dict())
    assert strides(model) == strides(copy.deepcopy(model)) == strides(model.double()) == STRIDES


def test_on_digits_training_is_the_same_but_for_rounding_and_ends_in_the_format() -> None:
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


@pytest.mark.parametrize("turned", [False, True])
def test_it_comes_after_those_that_change_layers_wherever_it_is_listed(turned: bool) -> None:
    algorithms = [ChannelsLast(), SqueezeExcite(4, 2), BlurPool(min_channels=4)][:: -1 if turned else 1]
    logged = run_init(nn.Sequential(nn.Conv2d(4, 4, 3, stride=2)), *algorithms)
    assert [next(iter(entry)) for entry in logged] == [
        "blurpool/replaced",
        "squeeze_excite/replaced",
        "channels_last/replaced",
    ]
