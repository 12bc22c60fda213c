"""What `apply_blurpool` replaces in a model, what it leaves alone, and what stays as it was."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from engine_core.errors import ArgumentError, ArgumentTypeError
from surgery_plugin import BlurConv2d, BlurMaxPool2d, BlurPool, apply_blurpool


class Own(nn.Conv2d):
    """A convolution that computes something else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -super().forward(x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.shortcut = nn.Conv2d(16, 16, 1, stride=(2, 2))
        self.pool = nn.MaxPool2d(3, stride=1, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(torch.relu(self.conv(x) + self.shortcut(x)))


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.MaxPool2d(2), Block(), nn.Conv2d(16, 8, 3, padding=1))


def test_what_subsamples_is_replaced_and_named() -> None:
    model = net()
    assert apply_blurpool(model) == ["1", "2.conv", "2.shortcut"]
    assert [type(model[0]), type(model[1]), type(model[2].conv)] == [nn.Conv2d, BlurMaxPool2d, BlurConv2d]
    assert model(torch.randn(2, 3, 33, 31)).shape == net()(torch.randn(2, 3, 33, 31)).shape == (2, 8, 4, 4)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"replace_convs": False}, ["1"]),
        ({"replace_maxpools": False}, ["2.conv", "2.shortcut"]),
        ({"min_channels": 3}, ["0", "1", "2.conv", "2.shortcut"]),
    ],
)
def test_arguments_say_what_is_replaced(settings: dict[str, Any], names: list[str]) -> None:
    assert apply_blurpool(net(), **settings) == names


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(16, 8, 3),
        nn.Conv2d(15, 8, 3, stride=2),
        Own(16, 8, 3, stride=2),
        parametrizations.weight_norm(nn.Conv2d(16, 8, 3, stride=2)),
        prune.random_unstructured(nn.Conv2d(16, 8, 3, stride=2), "weight", 0.5),
        nn.ConvTranspose2d(16, 8, 3, stride=2),
        nn.AvgPool2d(2),
        nn.MaxPool2d(2, stride=(1, 1)),
        nn.MaxPool2d(2, return_indices=True),
    ],
    ids=repr,
)
def test_what_cannot_be_blurred_is_left_alone(layer: nn.Module) -> None:
    assert apply_blurpool(nn.Sequential(layer)) == []


@pytest.mark.parametrize(("blur_first", "counts"), [(True, [2.0, 3, 2]), (False, [2.5, 3, 2.5])])
def test_blurred_first_what_a_convolution_gives_at_the_border_is_sharp_and_last_it_is_blurred(
    blur_first: bool,
    counts: list[float],
) -> None:
    """Of a constant image, a sum over 3x3 gets 2, 3, 3, 3, 2 places along each axis; elsewhere both orders agree."""
    model = nn.Sequential(nn.Conv2d(16, 1, 3, stride=2, padding=1, bias=False))
    nn.init.constant_(model[0].weight, 1 / 16)
    apply_blurpool(model, blur_first=blur_first)
    places = torch.tensor(counts)
    torch.testing.assert_close(model(torch.ones(1, 16, 5, 5))[0, 0], places.outer(places))


def test_parameters_and_their_names_and_optimizers_stay() -> None:
    model = net()
    before, weights = dict(model.named_parameters()), copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    groups = [list(group["params"]) for group in optimizer.param_groups]
    apply_blurpool(model, optimizers=[optimizer])
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    assert all(one is other for one, other in zip(groups[0], optimizer.param_groups[0]["params"], strict=True))
    model.load_state_dict(weights)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"replace_convs": 1}, ArgumentTypeError, "replace_convs=1 .* True or False"),
        ({"min_channels": 0}, ArgumentError, "min_channels=0"),
        ({"min_channels": "16"}, ArgumentTypeError, "min_channels='16'"),
        ({"blur_first": 0}, ArgumentTypeError, "blur_first=0 .* True or False"),
        ({"replace_convs": False, "replace_maxpools": False}, ArgumentError, "leave nothing to replace"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        BlurPool(**arguments)
    with pytest.raises(error, match=message):
        apply_blurpool(net(), **arguments)
