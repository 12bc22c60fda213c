"""Squeeze-and-excitation against its formula, and `apply_squeeze_excite` on models."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from surgery_plugin import BlurConv2d, SqueezeExcite2d, SqueezeExciteConv2d, apply_squeeze_excite


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def net():
    return nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.Conv2d(64, 64, 3, groups=64), nn.Conv2d(64, 96, 1), nn.Conv2d(96, 63, 1)
    )


@pytest.mark.parametrize("shape", [(2, 6, 4, 5), (6, 4, 5), (2, 6, 1, 1)])
def test_each_channel_is_multiplied_by_its_gate(shape):
    layer, x = SqueezeExcite2d(6, 3).double(), torch.randn(shape, dtype=torch.float64)
    squeeze, excite = layer.squeeze.weight.tolist(), layer.excite.weight.tolist()  # (3, 6), (6, 3)
    expected = x.clone()
    for image, source in zip(expected.view(-1, *shape[-3:]), x.view(-1, *shape[-3:]), strict=True):
        means = [source[c].sum().item() / (shape[-1] * shape[-2]) for c in range(6)]
        latent = [max(0, sum(squeeze[k][c] * means[c] for c in range(6))) for k in range(3)]
        for c in range(6):
            image[c] /= 1 + math.exp(-sum(excite[c][k] * latent[k] for k in range(3)))
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-12)
    slopes = torch.autograd.grad(layer(x).sum(), [layer.squeeze.weight, layer.excite.weight])
    assert all(slope.abs().sum() > 0 for slope in slopes)


@pytest.mark.parametrize(
    ("latent_channels", "size"), [(1, 1), (7.0, 7), (0.25, 16), (0.29, 18), (0.001, 1), (128, 128)]
)
def test_latent_channels_are_a_number_or_below_1_a_fraction(latent_channels, size):
    layer = SqueezeExcite2d(64, latent_channels)
    assert (layer.squeeze.weight.shape, layer.excite.weight.shape) == ((size, 64), (64, size))
    assert layer.squeeze.bias is layer.excite.bias is None


def test_initial_weights_follow_from_the_generator_and_are_distributed_as_those_of_linear_layers():
    before = torch.get_rng_state()
    one, same, other = (SqueezeExcite2d(64, 4096, generator=seeded(seed)) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.squeeze.weight, same.squeeze.weight) and torch.equal(one.excite.weight, same.excite.weight)
    assert not torch.equal(one.squeeze.weight, other.squeeze.weight)
    for layer, inputs in ((one.squeeze, 64), (one.excite, 4096)):
        bound = 1 / math.sqrt(inputs)
        linear = nn.Linear(layer.in_features, layer.out_features, bias=False)
        assert layer.weight.abs().max() <= bound
        assert layer.weight.std().item() == pytest.approx(linear.weight.std().item(), rel=0.01)
        assert layer.weight.mean().item() == pytest.approx(0, abs=0.01 * bound)


def test_on_a_model_the_global_generator_is_left_alone_also_without_a_generator():
    one, other = net(), net()
    before = torch.get_rng_state()
    for model in (one, other):
        apply_squeeze_excite(model)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(one[1].squeeze_excite.squeeze.weight, other[1].squeeze_excite.squeeze.weight)


def test_convolutions_of_enough_channels_get_it_depthwise_ones_too():
    model = net()
    convs = list(model)
    assert apply_squeeze_excite(model, latent_channels=0.125) == ["1", "2"]
    assert [type(layer) for layer in model] == [nn.Conv2d, SqueezeExciteConv2d, SqueezeExciteConv2d, nn.Conv2d]
    assert model[2].conv is convs[2] and model[2].squeeze_excite.squeeze.weight.shape == (12, 96)
    x = torch.randn(2, 3, 8, 8)
    expected = convs[0](x)
    for layer in (1, 2):
        expected = model[layer].squeeze_excite(convs[layer](expected))
    assert torch.equal(model(x), convs[3](expected))


@pytest.mark.parametrize(("min_channels", "names"), [(3, ["0", "1", "2", "3"]), (63, ["1", "2", "3"]), (65, [])])
def test_min_channels_counts_inputs_and_outputs(min_channels, names):
    assert apply_squeeze_excite(net(), min_channels=min_channels) == names


def test_subclasses_get_it_too_as_they_stay_inside():
    blurred = BlurConv2d(64, 64, 3, stride=2)
    model = nn.Sequential(blurred, parametrizations.weight_norm(nn.Conv2d(64, 64, 3)))
    assert apply_squeeze_excite(model) == ["0", "1"]
    assert model[0].conv is blurred
    model(torch.randn(1, 64, 9, 9)).sum().backward()
