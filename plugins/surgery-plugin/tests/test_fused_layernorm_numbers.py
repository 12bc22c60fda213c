"""FusedLayerNorm against nn.LayerNorm: the same bits in float32, bounded by rounding in bfloat16; gradients too."""

import copy
from typing import Any

import pytest
import torch
from surgery_parts import twins
from torch import nn

from surgery_plugin import ComputeDtypeLayerNorm, apply_fused_layernorm

U = 2.0**-8
"""Half the distance from 1 to the next larger bfloat16: what one rounding may cost, relatively."""

OPTIONS: list[dict[str, Any]] = [{}, {"bias": False}, {"elementwise_affine": False}, {"eps": 0.1}]


def make_norm(shape: tuple[int, ...] = (8,), **options: Any) -> nn.LayerNorm:
    norm = nn.LayerNorm(shape, **options)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn(shape))
    return norm


def fused(norm: nn.LayerNorm) -> nn.Module:
    model = nn.Sequential(copy.deepcopy(norm))
    apply_fused_layernorm(model)
    assert type(model[0]) is ComputeDtypeLayerNorm
    return model[0]


def run(norm: nn.Module, x: torch.Tensor, slope: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the output, and the gradients by the input and the parameters."""
    x = x.clone().requires_grad_()
    out = norm(x)
    (out.float() * slope).sum().backward()
    return out.detach(), [x.grad, *(parameter.grad for parameter in norm.parameters())]


@pytest.mark.parametrize(
    ("options", "shape", "dtype"),
    [
        ({}, (3, 8), torch.float32),
        ({"bias": False}, (8,), torch.float32),
        ({"elementwise_affine": False}, (8,), torch.float64),
        ({"eps": 0.1}, (2, 3, 8), torch.bfloat16),
    ],
    ids=str,
)
def test_outside_of_autocast_it_is_nn_layernorm_bit_for_bit(options, shape, dtype) -> None:
    norm = make_norm(shape, **options).to(dtype)
    x, slope = torch.randn(4, 2, 3, 8, dtype=dtype), torch.randn(4, 2, 3, 8)
    out, gradients = run(norm, x, slope)
    same, as_well = run(fused(norm), x, slope)
    assert torch.equal(out, same) and out.dtype is same.dtype
    assert all(torch.equal(one, other) for one, other in zip(gradients, as_well, strict=True))


def exact(norm: nn.LayerNorm, x: torch.Tensor, slope: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    return run(copy.deepcopy(norm).double(), x.double(), slope)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_under_autocast_the_output_is_bfloat16_and_three_roundings_off_at_most(options, dtype) -> None:
    """Of weight, bias and output. The inputs are bfloat16 already and are not rounded."""
    norm = make_norm(**options)
    x = torch.randn(64, 8).bfloat16()
    expected, _ = exact(norm, x, torch.ones(64, 8))
    bias = norm.bias if norm.bias is not None else torch.zeros(8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = fused(norm)(x.to(dtype))
    assert out.dtype is torch.bfloat16
    bound = 2.1 * U * ((expected - bias).abs() + bias.abs())
    assert ((out.double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_under_autocast_gradients_are_bounded_by_rounding_and_have_the_dtypes_of_what_they_belong_to(options) -> None:
    norm, x = make_norm(**options), torch.randn(64, 8).bfloat16()
    slope = torch.randn(64, 8).bfloat16().float()
    _, expected = exact(norm, x, slope)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer = fused(norm)
        _, gradients = run(layer, x.float(), slope)
    assert all(gradient.dtype is torch.float32 for gradient in gradients)
    for gradient, true in zip(gradients, expected, strict=True):
        assert (gradient - true).norm() <= 4 * U * true.norm()


def test_under_autocast_gradients_of_the_parameters_are_rounded_as_those_of_linear_layers_are() -> None:
    x, slope = torch.randn(50, 8), torch.randn(50, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = [run(layer, x, slope)[1] for layer in (fused(make_norm()), nn.Linear(8, 8))]
    for _, *grads in results:
        assert all(grad.dtype is torch.float32 and torch.equal(grad, grad.bfloat16().float()) for grad in grads)


def test_the_parameters_stay_float32_and_the_very_ones() -> None:
    model = nn.Sequential(make_norm())
    weight, bias = model[0].weight, model[0].bias
    apply_fused_layernorm(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.randn(2, 8)).sum().backward()
        assert nn.Linear(8, 8)(torch.randn(2, 8)).dtype is torch.bfloat16  # others compute as before
    assert model[0].weight is weight and model[0].bias is bias
    assert weight.dtype is weight.grad.dtype is torch.float32


def test_float64_is_left_alone_as_autocast_leaves_it_alone() -> None:
    norm, x = make_norm().double(), torch.randn(2, 8, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(fused(norm)(x), norm(x))


def test_it_works_where_there_is_no_autocast() -> None:
    assert fused(make_norm()).to("meta")(torch.randn(2, 8, device="meta")).shape == (2, 8)


def test_copies_and_pickles_compute_the_same() -> None:
    layer, x, other = fused(make_norm()), torch.randn(2, 8), make_norm()
    other.load_state_dict(layer.state_dict())
    assert all(torch.equal(twin(x), layer(x)) for twin in [*twins(layer), other])


def test_a_model_that_is_compiled_afterwards_computes_the_same() -> None:
    layer, x = fused(make_norm()), torch.randn(2, 8)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(compiled(x), layer(x))
    assert torch.equal(compiled(x), layer(x))
    torch.compiler.reset()
