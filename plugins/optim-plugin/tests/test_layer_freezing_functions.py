"""When layers are frozen, and which, without an engine."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from optim_plugin import freeze_layers, freezing_schedule, start_average, trainable_layers
from optim_plugin.freezing import count_frozen


@pytest.mark.parametrize("function", [start_average, trainable_layers, lambda model: freeze_layers(model, 0.5)])
def test_anything_but_a_model_is_refused(function: Any) -> None:
    for model in (None, nn.Linear):
        with pytest.raises(TypeError, match=f"^model: {type(model).__name__} is not a torch.nn.Module$"):
            function(model)


def make_net() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 3)
    )


def frozen_of(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if not parameter.requires_grad]


def test_the_schedule_is_linear_from_start_to_level_at_the_end() -> None:
    """The published form: level * (done - start) / (1 - start) after start, else 0."""
    done = [0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    expected = [0.0, 0.0, 0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75]
    assert [freezing_schedule(at, start=0.4, level=0.75) for at in done] == pytest.approx(expected)
    assert freezing_schedule(1.5, start=0.4, level=0.75) == 0.75


@pytest.mark.parametrize(
    ("fraction", "layers", "count"),
    [(0.0, 4, 0), (0.24, 4, 0), (0.25, 4, 1), (0.99, 4, 3), (1.0, 4, 3), (0.29, 100, 29), (1.0, 1, 0), (1.0, 0, 0)],
)
def test_this_many_are_frozen_and_never_the_last(fraction: float, layers: int, count: int) -> None:
    assert count_frozen(fraction, layers) == count


def test_layers_are_frozen_from_the_front() -> None:
    model = make_net()
    assert trainable_layers(model) == ["0", "1", "3.0", "4"]
    assert freeze_layers(model, 0.5) == ["0", "1"]
    assert frozen_of(model) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_a_fraction_that_grows_is_of_the_layers_at_the_beginning() -> None:
    model = make_net()
    layers = trainable_layers(model)
    counts = [len(freeze_layers(model, fraction, layers)) for fraction in (0.25, 0.5, 0.75, 1.0)]
    assert counts == [1, 2, 3, 3]
    assert trainable_layers(model) == ["4"]


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_optimizers_leave_frozen_weights_bit_equal(kind: str) -> None:
    """Momentum, moments and weight decay don't affect them, although there is state from earlier steps."""
    model = make_net()
    optimizer: Any = (
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        if kind == "sgd"
        else torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    )
    for step in range(6):
        optimizer.zero_grad(set_to_none=False)  # zeros would be enough for a step of momentum
        model(torch.randn(8, 4)).square().mean().backward()
        if step == 3:
            assert freeze_layers(model, 0.5) == ["0", "1"]
            before = copy.deepcopy(model.state_dict())
        optimizer.step()
    now = dict(model.named_parameters())
    assert all(torch.equal(before[name], now[name]) for name in ("0.weight", "0.bias", "1.weight", "1.bias"))
    assert not torch.equal(before["3.0.weight"], now["3.0.weight"])


def test_a_shared_parameter_is_frozen_with_the_last_of_its_users() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1))
    model[2].weight = model[0].weight
    layers = trainable_layers(model)
    assert freeze_layers(model, 0.5, layers) == ["0", "1"]
    assert frozen_of(model) == ["0.bias", "1.weight", "1.bias"]
    freeze_layers(model, 0.75, layers)
    assert frozen_of(model) == ["0.weight", "0.bias", "1.weight", "1.bias", "2.bias"]


def test_a_module_in_two_places_counts_at_the_last() -> None:
    shared = nn.Linear(3, 3)
    assert trainable_layers(nn.Sequential(shared, nn.Linear(3, 3), shared)) == ["1", "2"]


def test_what_the_user_froze_stays_and_does_not_count() -> None:
    model = make_net()
    model[0].requires_grad_(False)
    model[1].bias.requires_grad_(False)
    model[1].bias.grad = torch.ones(6)
    assert trainable_layers(model) == ["1", "3.0", "4"]
    assert freeze_layers(model, 0.34) == ["1"]
    assert model[1].bias.grad is not None
    assert frozen_of(model) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_parameters_of_the_model_itself_are_its_first_layer() -> None:
    class Prompted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(2, 2)
            self.prompt = nn.Parameter(torch.zeros(2))

    assert trainable_layers(Prompted()) == ["", "body"]


def test_a_compiled_model_has_the_layers_of_the_original() -> None:
    compiled: Any = torch.compile(nn.DataParallel(make_net()), backend="eager")
    assert freeze_layers(compiled, 0.5) == ["0", "1"]


def test_layers_after_the_last_with_a_gradient_do_not_count() -> None:
    """They are not part of the loss; one without a gradient before that may be a branch that was not taken."""
    model = make_net()
    model[1](model[0](torch.ones(2, 4))).sum().backward()
    model[0].zero_grad()
    assert trainable_layers(model) == ["0", "1"]
    assert freeze_layers(model, 1.0) == ["0"]


@pytest.mark.parametrize("arguments", [{"start": 1.0}, {"start": -1}, {"level": 0}, {"level": 2}, {"done": -1}])
def test_an_impossible_schedule_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(arguments))}="):
        freezing_schedule(**{"done": 2.0, **arguments})


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_anything_but_a_fraction_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction="):
        freeze_layers(make_net(), fraction)


def test_a_layer_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="'head' is not a module of this model"):
        freeze_layers(make_net(), 0.5, ["0", "head"])
