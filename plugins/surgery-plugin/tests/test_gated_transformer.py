"""Gated linear units in nn.TransformerEncoderLayer, in all the ways by which torch may compute one."""

from typing import Any

import pytest
import torch
from surgery_parts import twins
from torch import nn
from torch.nn import functional as F

from surgery_plugin import GatedLinear, apply_gated_linear_units, apply_stochastic_depth


def make_layer(**options: Any) -> nn.TransformerEncoderLayer:
    layer = nn.TransformerEncoderLayer(8, 2, 16, **{"dropout": 0.0, "batch_first": True, **options})
    with torch.no_grad():
        for parameter in layer.parameters():  # norms and biases start with ones and zeros
            parameter.copy_(torch.randn(parameter.shape) / 2)
    return layer


def by_hand(layer: nn.TransformerEncoderLayer, act: Any, x: torch.Tensor, **masks: Any) -> torch.Tensor:
    """Compute the layer without its own forward."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        return layer.self_attn(x, x, x, need_weights=False, **masks)[0]

    def feed(x: torch.Tensor) -> torch.Tensor:
        linear, gate, second = layer.linear1.linear, layer.linear1.gate, layer.linear2
        hidden = act(x @ linear.weight.T + linear.bias) * (x @ gate.weight.T + gate.bias)
        return hidden @ second.weight.T + second.bias

    if layer.norm_first:
        x = x + attend(layer.norm1(x))
        return x + feed(layer.norm2(x))
    x = layer.norm1(x + attend(x))
    return layer.norm2(x + feed(x))


def padding() -> torch.Tensor:
    return torch.arange(5)[None] >= torch.tensor([5, 3, 2])[:, None]  # (3, 5), True is padded


MODES = {"no_grad": torch.no_grad, "inference": torch.inference_mode, "grad": torch.enable_grad}


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", [F.gelu, "relu", nn.ReLU(), torch.tanh], ids=str)
def test_in_evaluation_and_in_training_a_layer_computes_the_formula(norm_first, activation) -> None:
    layer = make_layer(batch_first=norm_first, norm_first=norm_first, activation=activation)
    apply_gated_linear_units(layer)
    x, act = torch.randn(3, 5, 8), F.relu if activation == "relu" else activation
    torch.testing.assert_close(layer(x), by_hand(layer, act, x))
    for mode in MODES.values():
        with mode():
            torch.testing.assert_close(layer.eval()(x), by_hand(layer, act, x))


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_with_padding_computes_the_formula(mode) -> None:
    layer = make_layer().eval()
    apply_gated_linear_units(layer)
    x, mask = torch.randn(3, 5, 8), padding()
    with MODES[mode]():
        out, expected = layer(x, src_key_padding_mask=mask), by_hand(layer, F.relu, x, key_padding_mask=mask)
    torch.testing.assert_close(out[~mask], expected[~mask])


@pytest.mark.parametrize(("mode", "is_wrapped"), [*((mode, False) for mode in MODES), ("no_grad", True)])
def test_an_encoder_that_would_make_nested_tensors_computes_the_formula(mode, is_wrapped) -> None:
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
def test_nested_tensors_of_the_user_compute_the_formula() -> None:
    layer = make_layer().eval()
    apply_gated_linear_units(layer)
    rows = [torch.randn(length, 8) for length in (5, 3, 2)]
    with torch.no_grad():
        out = layer(torch.nested.nested_tensor(rows)).unbind()
        expected = [by_hand(layer, F.relu, row[None])[0] for row in rows]
    for one, other in zip(out, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_a_gated_layer_may_go_into_an_encoder_later() -> None:
    layer = make_layer().eval()
    apply_gated_linear_units(layer)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(3, 5, 8)
    with torch.no_grad():
        expected = by_hand(layer, F.relu, by_hand(layer, F.relu, x))
        torch.testing.assert_close(encoder(x), expected)


def test_the_layers_of_an_encoder_are_gated_by_name_and_the_old_ones_kept() -> None:
    encoder = nn.TransformerEncoder(make_layer(), 2)
    first = encoder.layers[0].linear1
    assert apply_gated_linear_units(encoder) == ["layers.0.linear1", "layers.1.linear1"]
    gated = encoder.layers[0].linear1
    assert isinstance(gated, GatedLinear) and gated.linear is first and gated.activation is F.relu
    assert not torch.equal(gated.gate.weight, encoder.layers[1].linear1.gate.weight)


class OwnFeedForward(nn.TransformerEncoderLayer):
    def _ff_block(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear2(self.linear1(x).clamp(0, 6))


class OwnName(nn.TransformerEncoderLayer):
    pass


class OwnForward(nn.TransformerEncoderLayer):
    def forward(self, src: torch.Tensor) -> torch.Tensor:
        return src + self.linear2(torch.sigmoid(self.linear1(src)))


def test_a_subclass_is_gated_unless_it_has_its_own_forward_or_feed_forward() -> None:
    assert apply_gated_linear_units(OwnName(8, 2, 16)) == ["linear1"]
    assert apply_gated_linear_units(OwnFeedForward(8, 2, 16)) == []
    assert apply_gated_linear_units(OwnForward(8, 2, 16)) == []


def test_copies_and_pickles_of_an_encoder_compute_the_same() -> None:
    encoder, x = nn.TransformerEncoder(make_layer(), 2).eval(), torch.randn(3, 5, 8)
    apply_gated_linear_units(encoder)
    with torch.no_grad():
        for other in twins(encoder):
            assert torch.equal(other(x, src_key_padding_mask=padding()), encoder(x, src_key_padding_mask=padding()))
