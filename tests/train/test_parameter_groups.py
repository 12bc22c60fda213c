"""Which of several groups a new parameter joins, where weights and biases are in different ones."""

import pytest
import torch
from torch import nn

from engine_core.errors import ArgumentError

from .test_parameters import SGD, layers, prelu, replace_modules, trained


def decayed_or_not(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer with weight decay for matrices only, as is usual."""
    parameters = list(model.parameters())
    matrices, rest = ([p for p in parameters if (p.dim() > 1) is wide] for wide in (True, False))
    return SGD([{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=0.1)


def gated(module: nn.Linear, name: str) -> nn.Module:
    """Return the layer with another beside it."""
    return nn.ModuleDict({"inner": module, "gate": nn.Linear(module.in_features, module.out_features)})


def scaled(module: nn.Linear, name: str) -> nn.Module:
    """Return the layer with a vector and a matrix of other names."""
    new = nn.ModuleDict({"inner": module})
    new.scale, new.mixing = nn.Parameter(torch.ones(2)), nn.Parameter(torch.eye(2))
    return new


def test_a_new_parameter_joins_those_that_have_its_name_elsewhere() -> None:
    model = layers(2, 2)
    optimizer = decayed_or_not(model)
    replace_modules(model, {nn.Linear: gated}, optimizers=optimizer)
    assert trained(model, optimizer) == [["0.inner.weight", "0.gate.weight"], ["0.inner.bias", "0.gate.bias"]]


def test_among_those_with_its_name_or_without_any_it_joins_those_with_as_many_dimensions() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.ReLU())
    optimizer = decayed_or_not(model)
    replace_modules(model, {nn.Linear: scaled, nn.ReLU: prelu}, optimizers=optimizer)
    assert trained(model, optimizer) == [
        ["0.inner.weight", "0.mixing"],
        ["0.inner.bias", "1.weight", "1.bias", "0.scale", "2.weight"],
    ]


def test_what_is_nearer_counts_more_than_what_is_alike() -> None:
    model = layers(2, 2, 2)
    weights = {"params": [model[0].weight, model[2].weight]}
    optimizer = SGD([weights, {"params": [model[0].bias]}, {"params": [model[2].bias]}], lr=0.1)
    replace_modules(model, {nn.Linear: gated}, optimizers=optimizer)
    assert [group[-1] for group in trained(model, optimizer)] == ["2.gate.weight", "0.gate.bias", "2.gate.bias"]


def test_the_one_of_several_optimizers_with_its_like_trains_it_and_without_one_it_is_refused() -> None:
    model = layers(2, 2, 2)
    optimizers = [SGD([model[0].weight, model[2].weight], lr=0.1), SGD([model[0].bias, model[2].bias], lr=0.1)]
    replace_modules(model, {nn.Linear: lambda m, n: gated(m, n) if n == "0" else None}, optimizers=optimizers)
    assert [trained(model, optimizer)[0][2:] for optimizer in optimizers] == [["0.gate.weight"], ["0.gate.bias"]]
    three = nn.Sequential(nn.PReLU(), nn.PReLU(), nn.ReLU())
    optimizers = [SGD(part.parameters(), lr=0.1) for part in three[:2]]
    with pytest.raises(ArgumentError, match=r"several of them could train the new parameter '2\.weight'"):
        replace_modules(three, {nn.ReLU: prelu}, optimizers=optimizers)
