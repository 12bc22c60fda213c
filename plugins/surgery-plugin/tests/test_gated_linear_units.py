"""Gated linear units in Sequential and in transformer layers compute the paper's formula."""

import pytest
import torch
from surgery_parts import twins
from torch import nn
from torch.nn import functional as F

from surgery_plugin import GatedLinear, apply_gated_linear_units, apply_stochastic_depth


def mlp(activation, **options):
    return nn.Sequential(nn.Linear(5, 7, **options), activation, nn.Linear(7, 3, **options))


@pytest.mark.parametrize(
    ("activation", "formula", "bias"),
    [(nn.ReLU(), lambda x: x.clamp(min=0), True), (nn.SiLU(), lambda x: x * torch.sigmoid(x), False)],
)
def test_a_gated_run_computes_the_formula_of_the_paper(activation, formula, bias):
    model = mlp(activation, bias=bias).double()
    w, w2 = model[0].weight, model[2].weight
    b, b2 = (model[0].bias, model[2].bias) if bias else (0, 0)
    apply_gated_linear_units(model)
    v, c = model[0].gate.weight, model[0].gate.bias if bias else 0
    x = torch.randn(4, 5, dtype=torch.float64)
    expected = (formula(x @ w.T + b) * (x @ v.T + c)) @ w2.T + b2
    torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-12)
    (slope,) = torch.autograd.grad(expected.sum(), v)
    torch.testing.assert_close(torch.autograd.grad(model(x).sum(), v)[0], slope)


@pytest.mark.parametrize(("name", "formula"), [("identity", lambda x: x), ("gelu", F.gelu), (torch.sin, torch.sin)])
def test_another_activation_can_take_the_place_of_the_one_there(name, formula):
    model = mlp(nn.ReLU())
    apply_gated_linear_units(model, name)
    x = torch.randn(4, 5)
    hidden = formula(F.linear(x, model[0].linear.weight, model[0].linear.bias)) * model[0].gate(x)
    torch.testing.assert_close(model(x), model[2](hidden))


def test_old_layers_stay_the_very_ones_and_dropout_acts_on_the_product():
    model = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Dropout(0.5), nn.Dropout(0.1), nn.Linear(6, 2))
    before = list(model)
    assert apply_gated_linear_units(model) == ["0"]
    assert [type(layer) for layer in model] == [GatedLinear, nn.Identity, nn.Dropout, nn.Dropout, nn.Linear]
    assert model[0].linear is before[0] and model[0].activation is before[1]
    assert [model[2], model[3], model[4]] == before[2:]


SHARED = nn.Linear(4, 4)
RUN = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)


class Doubled(nn.Linear):
    pass


class Reversed(nn.Sequential):
    def forward(self, x):
        for layer in reversed(list(self)):
            x = layer(x)
        return x


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.PReLU(), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.ReLU(), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 4)),
        nn.Sequential(Doubled(4, 4), nn.ReLU(), nn.Linear(4, 4)),
        nn.Sequential(SHARED, nn.ReLU(), nn.Linear(4, 4), SHARED),
        Reversed(*RUN),
        nn.ModuleList(RUN),
    ],
    ids=repr,
)
def test_anything_but_such_a_run_is_left_alone(model):
    before = list(model.named_modules(remove_duplicate=False))
    assert apply_gated_linear_units(model) == []
    assert list(model.named_modules(remove_duplicate=False)) == before


def test_an_activation_in_two_places_stays_in_the_place_that_is_not_a_run():
    relu = nn.ReLU()
    model = nn.ModuleDict({"run": nn.Sequential(nn.Linear(4, 4), relu, nn.Linear(4, 4), relu), "other": relu})
    apply_gated_linear_units(model)
    assert [type(layer) for layer in model["run"]] == [GatedLinear, nn.Identity, nn.Linear, nn.ReLU]
    assert model["other"] is model["run"][3] is model["run"][0].activation is relu


def test_new_weights_are_those_of_a_linear_from_the_generator_and_none_from_torch():
    model = mlp(nn.ReLU()).bfloat16()
    before = torch.get_rng_state()
    apply_gated_linear_units(model, generator=torch.Generator().manual_seed(5))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    like = nn.Linear(5, 7)  # draws weight, then bias, from torch's own generator
    assert torch.equal(model[0].gate.weight, like.weight.bfloat16())
    assert torch.equal(model[0].gate.bias, like.bias.bfloat16())


@pytest.mark.parametrize(
    ("activation", "error", "message"),
    [
        ("swish", ValueError, "activation='swish' has to be one of gelu, identity, relu, sigmoid, silu, tanh"),
        (nn.GELU, TypeError, "not a class"),
        (3, TypeError, "activation=3 has to be a name"),
        (nn.PReLU(), ValueError, "has parameters"),
    ],
)
def test_an_impossible_activation_is_refused(activation, error, message):
    with pytest.raises(error, match=message):
        apply_gated_linear_units(mlp(nn.ReLU()), activation)


def make_layer(**options):
    layer = nn.TransformerEncoderLayer(8, 2, 16, **{"dropout": 0.0, "batch_first": True, **options})
    with torch.no_grad():
        for parameter in layer.parameters():  # norms and biases start with ones and zeros
            parameter.copy_(torch.randn(parameter.shape) / 2)
    return layer


def by_hand(layer, act, x, **masks):
    """Compute the layer without its own forward."""

    def attend(x):
        return layer.self_attn(x, x, x, need_weights=False, **masks)[0]

    def feed(x):
        linear, gate, second = layer.linear1.linear, layer.linear1.gate, layer.linear2
        hidden = act(x @ linear.weight.T + linear.bias) * (x @ gate.weight.T + gate.bias)
        return hidden @ second.weight.T + second.bias

    if layer.norm_first:
        x = x + attend(layer.norm1(x))
        return x + feed(layer.norm2(x))
    x = layer.norm1(x + attend(x))
    return layer.norm2(x + feed(x))


def padding():
    return torch.arange(5)[None] >= torch.tensor([5, 3, 2])[:, None]  # (3, 5), True is padded


MODES = {"no_grad": torch.no_grad, "inference": torch.inference_mode, "grad": torch.enable_grad}


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", [F.gelu, "relu", nn.ReLU(), torch.tanh], ids=["gelu", "relu", "ReLU", "tanh"])
def test_in_evaluation_and_in_training_a_layer_computes_the_formula(norm_first, activation):
    layer = make_layer(batch_first=norm_first, norm_first=norm_first, activation=activation)
    apply_gated_linear_units(layer)
    x, act = torch.randn(3, 5, 8), F.relu if activation == "relu" else activation
    torch.testing.assert_close(layer(x), by_hand(layer, act, x))
    for mode in MODES.values():
        with mode():
            torch.testing.assert_close(layer.eval()(x), by_hand(layer, act, x))


@pytest.mark.parametrize(("mode", "is_wrapped"), [*((mode, False) for mode in MODES), ("no_grad", True)])
def test_an_encoder_that_would_make_nested_tensors_computes_the_formula(mode, is_wrapped):
    """Without surgery torch makes one of this mask, and its kernel reads the weights of the layers."""
    encoder = nn.TransformerEncoder(make_layer(), 2).eval()
    assert encoder.use_nested_tensor
    if is_wrapped:
        apply_stochastic_depth(encoder)
    apply_gated_linear_units(encoder)
    assert not encoder.use_nested_tensor
    x, mask = torch.randn(3, 5, 8), padding()
    with MODES[mode]():
        out, expected = encoder(x, src_key_padding_mask=mask), x
        for layer in encoder.layers:
            expected = by_hand(layer, F.relu, expected, key_padding_mask=mask)
    torch.testing.assert_close(out[~mask], expected[~mask])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_of_the_user_compute_the_formula():
    layer = make_layer().eval()
    apply_gated_linear_units(layer)
    rows = [torch.randn(length, 8) for length in (5, 3, 2)]
    with torch.no_grad():
        out = layer(torch.nested.nested_tensor(rows)).unbind()
        expected = [by_hand(layer, F.relu, row[None])[0] for row in rows]
    for one, other in zip(out, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_the_layers_of_an_encoder_are_gated_by_name_and_the_old_ones_kept():
    encoder = nn.TransformerEncoder(make_layer(), 2)
    first = encoder.layers[0].linear1
    assert apply_gated_linear_units(encoder) == ["layers.0.linear1", "layers.1.linear1"]
    gated = encoder.layers[0].linear1
    assert isinstance(gated, GatedLinear) and gated.linear is first and gated.activation is F.relu
    assert not torch.equal(gated.gate.weight, encoder.layers[1].linear1.gate.weight)


class OwnFeedForward(nn.TransformerEncoderLayer):
    def _ff_block(self, x):
        return self.linear2(self.linear1(x).clamp(0, 6))


class OwnName(nn.TransformerEncoderLayer):
    pass


class OwnForward(nn.TransformerEncoderLayer):
    def forward(self, src):
        return src + self.linear2(torch.sigmoid(self.linear1(src)))


def test_a_subclass_is_gated_unless_it_has_its_own_forward_or_feed_forward():
    assert apply_gated_linear_units(OwnName(8, 2, 16)) == ["linear1"]
    assert apply_gated_linear_units(OwnFeedForward(8, 2, 16)) == []
    assert apply_gated_linear_units(OwnForward(8, 2, 16)) == []


def test_copies_and_pickles_of_an_encoder_compute_the_same():
    encoder, x = nn.TransformerEncoder(make_layer(), 2).eval(), torch.randn(3, 5, 8)
    apply_gated_linear_units(encoder)
    with torch.no_grad():
        for other in twins(encoder):
            assert torch.equal(other(x, src_key_padding_mask=padding()), encoder(x, src_key_padding_mask=padding()))
