"""Gated linear units in Sequential: which runs are gated, and that they compute the paper's formula."""

import pytest
import torch
from surgery_parts import twins
from torch import nn
from torch.nn import functional as F

from surgery_plugin import GatedLinear, apply_gated_linear_units


def mlp(activation: nn.Module, **options: bool) -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 7, **options), activation, nn.Linear(7, 3, **options))


@pytest.mark.parametrize(
    ("activation", "formula", "bias"),
    [(nn.ReLU(), lambda x: x.clamp(min=0), True), (nn.SiLU(), lambda x: x * torch.sigmoid(x), False)],
)
def test_a_gated_run_computes_the_formula_of_the_paper(activation, formula, bias) -> None:
    model = mlp(activation, bias=bias).double()
    w, w2 = model[0].weight, model[2].weight
    b, b2 = (model[0].bias, model[2].bias) if bias else (0, 0)
    apply_gated_linear_units(model)
    v, c = model[0].gate.weight, model[0].gate.bias if bias else 0
    x = torch.randn(4, 5, dtype=torch.float64)
    expected = (formula(x @ w.T + b) * (x @ v.T + c)) @ w2.T + b2
    torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "formula"),
    [("identity", lambda x: x), ("gelu", F.gelu), (torch.sin, torch.sin)],
)
def test_another_activation_can_take_the_place_of_the_one_there(name, formula) -> None:
    model = mlp(nn.ReLU())
    apply_gated_linear_units(model, name)
    x = torch.randn(4, 5)
    hidden = formula(F.linear(x, model[0].linear.weight, model[0].linear.bias)) * model[0].gate(x)
    torch.testing.assert_close(model(x), model[2](hidden))


def test_old_layers_stay_the_very_ones_and_dropout_acts_on_the_product() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Dropout(0.5), nn.Dropout(0.1), nn.Linear(6, 2))
    before = list(model)
    assert apply_gated_linear_units(model) == ["0"]
    assert [type(layer) for layer in model] == [GatedLinear, nn.Identity, nn.Dropout, nn.Dropout, nn.Linear]
    assert model[0].linear is before[0] and model[0].activation is before[1]
    assert [model[2], model[3], model[4]] == before[2:]


def test_each_hidden_layer_of_a_deep_net_is_gated() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    assert apply_gated_linear_units(model) == ["0", "2"]
    assert model(torch.randn(3, 4)).shape == (3, 2)


SHARED = nn.Linear(4, 4)
RUN = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)


class Doubled(nn.Linear):
    pass


class Reversed(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in reversed(list(self)):
            x = layer(x)
        return x


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.PReLU(), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 4)),
        nn.Sequential(Doubled(4, 4), nn.ReLU(), nn.Linear(4, 4)),
        nn.Sequential(SHARED, nn.ReLU(), nn.Linear(4, 4), SHARED),
        Reversed(*RUN),
        nn.ModuleList(RUN),
    ],
    ids=repr,
)
def test_anything_but_such_a_run_is_left_alone(model) -> None:
    before = list(model.named_modules(remove_duplicate=False))
    assert apply_gated_linear_units(model) == []
    assert list(model.named_modules(remove_duplicate=False)) == before


def test_an_activation_in_two_places_stays_in_the_place_that_is_not_a_run() -> None:
    relu = nn.ReLU()
    model = nn.ModuleDict({"run": nn.Sequential(nn.Linear(4, 4), relu, nn.Linear(4, 4), relu), "other": relu})
    apply_gated_linear_units(model)
    assert [type(layer) for layer in model["run"]] == [GatedLinear, nn.Identity, nn.Linear, nn.ReLU]
    assert model["other"] is model["run"][3] is model["run"][0].activation is relu


def test_new_weights_are_those_of_a_linear_from_the_generator_and_none_from_torch() -> None:
    model = mlp(nn.ReLU()).bfloat16()
    before = torch.get_rng_state()
    apply_gated_linear_units(model, generator=torch.Generator().manual_seed(5))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    like = nn.Linear(5, 7)  # draws weight, then bias, from torch's own generator
    assert torch.equal(model[0].gate.weight, like.weight.bfloat16())
    assert torch.equal(model[0].gate.bias, like.bias.bfloat16())


def test_copies_and_pickles_compute_the_same() -> None:
    model, other, x = mlp(nn.ReLU(inplace=True)), mlp(nn.ReLU()), torch.randn(4, 5)
    for each in (model, other):
        apply_gated_linear_units(each)
    other.load_state_dict(model.state_dict())
    assert all(torch.equal(twin(x), model(x)) for twin in [*twins(model), other])


def test_a_model_that_is_compiled_afterwards_computes_the_same() -> None:
    model, x = mlp(nn.GELU()), torch.randn(4, 5)
    apply_gated_linear_units(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), model(x))
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("activation", "error", "message"),
    [
        ("swish", ValueError, "activation='swish' has to be one of gelu, identity, relu, sigmoid, silu, tanh"),
        (nn.GELU, TypeError, "not a class"),
        (3, TypeError, "activation=3 has to be a name"),
        (nn.PReLU(), ValueError, "has parameters"),
    ],
)
def test_an_impossible_activation_is_refused(activation, error, message) -> None:
    with pytest.raises(error, match=message):
        apply_gated_linear_units(mlp(nn.ReLU()), activation)
