"""FusedLayerNorm against nn.LayerNorm, the kernel that it takes, what it replaces, and where in the order."""

import copy
import sys

import pytest
import torch
from surgery_parts import twins
from torch import nn

from surgery_plugin import ComputeDtypeGroupNorm, ComputeDtypeLayerNorm, FusedLayerNorm, apply_fused_layernorm
from surgery_plugin.compute_dtype_layernorm import find_apex

U = 2.0**-8
"""Half the distance from 1 to the next larger bfloat16: what one rounding may cost, relatively."""

OPTIONS = [{}, {"bias": False}, {"elementwise_affine": False}, {"eps": 0.1}]


def make_norm(shape=(8,), **options):
    norm = nn.LayerNorm(shape, **options)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn(shape))
    return norm


def fused(norm):
    model = nn.Sequential(copy.deepcopy(norm))
    apply_fused_layernorm(model)
    assert type(model[0]) is ComputeDtypeLayerNorm
    return model[0]


def run(norm, x, slope):
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
def test_outside_of_autocast_it_is_nn_layernorm_bit_for_bit(options, shape, dtype):
    norm = make_norm(shape, **options).to(dtype)
    x, slope = torch.randn(4, 2, 3, 8, dtype=dtype), torch.randn(4, 2, 3, 8)
    out, gradients = run(norm, x, slope)
    same, as_well = run(fused(norm), x, slope)
    assert torch.equal(out, same) and out.dtype is same.dtype
    assert all(torch.equal(one, other) for one, other in zip(gradients, as_well, strict=True))


def exact(norm, x, slope):
    return run(copy.deepcopy(norm).double(), x.double(), slope)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_under_autocast_the_output_is_bfloat16_and_three_roundings_off_at_most(options, dtype):
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
def test_under_autocast_gradients_are_bounded_by_rounding_and_have_the_dtypes_of_what_they_belong_to(options):
    norm, x = make_norm(**options), torch.randn(64, 8).bfloat16()
    slope = torch.randn(64, 8).bfloat16().float()
    _, expected = exact(norm, x, slope)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer = fused(norm)
        _, gradients = run(layer, x.float(), slope)
    assert all(gradient.dtype is torch.float32 for gradient in gradients)
    for gradient, true in zip(gradients, expected, strict=True):
        assert (gradient - true).norm() <= 4 * U * true.norm()


def test_the_parameters_stay_float32_and_the_very_ones():
    model = nn.Sequential(make_norm())
    weight, bias = model[0].weight, model[0].bias
    apply_fused_layernorm(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.randn(2, 8)).sum().backward()
        assert nn.Linear(8, 8)(torch.randn(2, 8)).dtype is torch.bfloat16  # others compute as before
    assert model[0].weight is weight and model[0].bias is bias
    assert weight.dtype is weight.grad.dtype is torch.float32


def test_float64_is_left_alone_as_autocast_leaves_it_alone():
    norm, x = make_norm().double(), torch.randn(2, 8, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(fused(norm)(x), norm(x))


def test_it_works_where_there_is_no_autocast():
    assert fused(make_norm()).to("meta")(torch.randn(2, 8, device="meta")).shape == (2, 8)


FUNCTIONS = """
from torch.nn import functional as F

called = []

def fused_layer_norm_affine(input, weight, bias, normalized_shape, eps=1e-6, memory_efficient=False):
    called.append(("affine", input.dtype, weight.dtype, bias.dtype, eps))
    return F.layer_norm(input, normalized_shape, weight, bias, eps)

def fused_layer_norm(input, normalized_shape, eps=1e-6, memory_efficient=False):
    called.append(("plain", input.dtype, eps))
    return F.layer_norm(input, normalized_shape, None, None, eps)
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in {"apex", "fused_layer_norm_cuda"}]:
        del sys.modules[name]


def install(site, *, kernel=True):
    package = site / "apex" / "normalization"
    package.mkdir(parents=True)
    (site / "apex" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "fused_layer_norm.py").write_text(FUNCTIONS)
    if kernel:
        (site / "fused_layer_norm_cuda.py").touch()


def calls():
    """Return how the fake was called."""
    return sys.modules["apex.normalization.fused_layer_norm"].called


class OnCuda(torch.Tensor):
    """A tensor of the CPU that says that it is on CUDA, so that the choice can be seen on any machine."""

    is_cuda = True


def on_cuda(*shape):
    return torch.randn(*shape).as_subclass(OnCuda)


def test_apex_is_taken_where_it_is_installed_with_its_kernel(site):
    install(site)
    norm, x = ComputeDtypeLayerNorm(8, eps=0.5), on_cuda(2, 8)
    out = norm(x)
    assert calls() == [("affine", torch.float32, torch.float32, torch.float32, 0.5)]
    assert torch.equal(out, nn.LayerNorm(8, eps=0.5)(x))


def test_apex_gets_all_in_the_dtype_of_the_mixed_precision_and_has_another_function_without_parameters(site):
    install(site)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ComputeDtypeLayerNorm(8)(on_cuda(2, 8)).dtype is torch.bfloat16
    ComputeDtypeLayerNorm(8, elementwise_affine=False)(on_cuda(2, 8))
    assert calls() == [("affine", torch.bfloat16, torch.bfloat16, torch.bfloat16, 1e-5), ("plain", torch.float32, 1e-5)]


@pytest.mark.parametrize("case", ["cpu", "no bias"])
def test_what_apex_cannot_do_is_done_by_torch(site, case):
    install(site)
    norm = ComputeDtypeLayerNorm(8, bias=case != "no bias")
    norm(torch.randn(2, 8) if case == "cpu" else on_cuda(2, 8))
    assert calls() == []


@pytest.mark.parametrize("case", ["no kernel", "another apex"])
def test_without_apex_or_its_kernel_torch_is_taken(site, case):
    if case == "no kernel":
        install(site, kernel=False)
    if case == "another apex":
        (site / "apex.py").touch()
        (site / "fused_layer_norm_cuda.py").touch()
    x = on_cuda(2, 8)
    assert find_apex() is None
    assert torch.equal(ComputeDtypeLayerNorm(8)(x), nn.LayerNorm(8)(x))


def test_copies_and_pickles_choose_again(site):
    install(site)
    norm, x = ComputeDtypeLayerNorm(8), on_cuda(2, 8)
    for other in twins(norm):
        assert torch.equal(other(x), norm(x))
    assert len(calls()) == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("apex", [True, False])
def test_on_cuda_the_output_is_bfloat16_with_either(site, apex):
    if apex:
        install(site)
    norm, x = ComputeDtypeLayerNorm(64).cuda(), torch.randn(32, 64, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = norm(x)
    assert out.dtype is torch.bfloat16
    expected = nn.LayerNorm(64).cuda()(x.bfloat16().float())
    torch.testing.assert_close(out.float(), expected, rtol=2**-7, atol=2**-7)


class OwnNorm(nn.LayerNorm):
    pass


def test_exactly_nn_layernorm_is_replaced_and_no_subclass():
    model = nn.Sequential(nn.LayerNorm(4), OwnNorm(4), nn.Sequential(nn.LayerNorm(4)), nn.GroupNorm(2, 4))
    assert apply_fused_layernorm(model) == ["0", "2.0"]
    assert [type(layer) for layer in model] == [ComputeDtypeLayerNorm, OwnNorm, nn.Sequential, nn.GroupNorm]
    assert apply_fused_layernorm(model) == []


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("nested", [True, False])
def test_an_encoder_in_evaluation_computes_bit_for_bit_what_it_did(nested):
    """With torch's fused kernel of a whole layer, which keeps reading the norms' parameters."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval()
    x, mask = torch.randn(3, 5, 8), torch.arange(5)[None] >= torch.tensor([5, 3, 2])[:, None]
    with torch.no_grad():
        before = encoder(x, src_key_padding_mask=mask)
        assert len(apply_fused_layernorm(encoder)) == 4
        assert torch.equal(encoder(x, src_key_padding_mask=mask), before)


@pytest.mark.parametrize("affine", [True, False])
def test_a_group_norm_stays_unless_asked_for_and_then_computes_so_too(affine):
    norm, x = nn.GroupNorm(2, 4, affine=affine), torch.randn(16, 4, 3, 3).bfloat16()
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    model = nn.Sequential(nn.LayerNorm(3), copy.deepcopy(norm))
    assert apply_fused_layernorm(model) == ["0"]
    kept = list(model[1].parameters())
    assert apply_fused_layernorm(model, group_norm=True) == ["1"] and type(model[1]) is ComputeDtypeGroupNorm
    assert all(one is other for one, other in zip(kept, model[1].parameters(), strict=True))
    assert torch.equal(model[1](x.float()), norm(x.float()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model[1](x.float())
    assert out.dtype is torch.bfloat16
    exact, bias = copy.deepcopy(norm).double()(x.double()), norm.bias[:, None, None] if affine else torch.zeros(1)
    assert ((out - exact).abs() <= 2.1 * U * ((exact - bias).abs() + bias.abs())).all()


def test_only_an_instance_that_changes_group_norms_says_so():
    assert FusedLayerNorm().metadata.writes == ("model.LayerNorm",)
    assert FusedLayerNorm(group_norm=True).metadata.writes == ("model.LayerNorm", "model.GroupNorm")
