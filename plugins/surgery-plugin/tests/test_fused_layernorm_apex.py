"""Which kernel FusedLayerNorm takes: apex's where apex is installed and includes it, on CUDA; else torch's.

The apex here is an honest fake: the two functions have the real ones' signatures and their numbers.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from surgery_parts import twins
from torch import nn

from surgery_plugin import ComputeDtypeLayerNorm
from surgery_plugin.compute_dtype_layernorm import find_apex

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
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in {"apex", "fused_layer_norm_cuda"}]:
        del sys.modules[name]


def install(site: Path, *, kernel: bool = True) -> None:
    package = site / "apex" / "normalization"
    package.mkdir(parents=True)
    (site / "apex" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "fused_layer_norm.py").write_text(FUNCTIONS)
    if kernel:
        (site / "fused_layer_norm_cuda.py").touch()


def calls() -> list[tuple[Any, ...]]:
    """Return how the fake was called."""
    return sys.modules["apex.normalization.fused_layer_norm"].called


class OnCuda(torch.Tensor):
    """A tensor of the CPU that says that it is on CUDA, so that the choice can be seen on any machine."""

    is_cuda = True


def on_cuda(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).as_subclass(OnCuda)


def test_apex_is_taken_where_it_is_installed_with_its_kernel(site) -> None:
    install(site)
    norm, x = ComputeDtypeLayerNorm(8, eps=0.5), on_cuda(2, 8)
    out = norm(x)
    assert calls() == [("affine", torch.float32, torch.float32, torch.float32, 0.5)]
    assert torch.equal(out, nn.LayerNorm(8, eps=0.5)(x))


def test_apex_gets_all_in_the_dtype_of_the_mixed_precision_and_has_another_function_without_parameters(site) -> None:
    install(site)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ComputeDtypeLayerNorm(8)(on_cuda(2, 8)).dtype is torch.bfloat16
    ComputeDtypeLayerNorm(8, elementwise_affine=False)(on_cuda(2, 8))
    assert calls() == [("affine", torch.bfloat16, torch.bfloat16, torch.bfloat16, 1e-5), ("plain", torch.float32, 1e-5)]


@pytest.mark.parametrize("case", ["cpu", "no bias"])
def test_what_apex_cannot_do_is_done_by_torch(site, case) -> None:
    install(site)
    norm = ComputeDtypeLayerNorm(8, bias=case != "no bias")
    norm(torch.randn(2, 8) if case == "cpu" else on_cuda(2, 8))
    assert calls() == []


@pytest.mark.parametrize("case", ["no kernel", "another apex"])
def test_without_apex_or_its_kernel_torch_is_taken(site, case) -> None:
    if case == "no kernel":
        install(site, kernel=False)
    if case == "another apex":
        (site / "apex.py").touch()
        (site / "fused_layer_norm_cuda.py").touch()
    x = on_cuda(2, 8)
    assert find_apex() is None
    assert torch.equal(ComputeDtypeLayerNorm(8)(x), nn.LayerNorm(8)(x))


def test_copies_and_pickles_choose_again(site) -> None:
    install(site)
    norm, x = ComputeDtypeLayerNorm(8), on_cuda(2, 8)
    for other in twins(norm):
        assert torch.equal(other(x), norm(x))
    assert len(calls()) == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("apex", [True, False])
def test_on_cuda_the_output_is_bfloat16_with_either(site, apex) -> None:
    if apex:
        install(site)
    norm, x = ComputeDtypeLayerNorm(64).cuda(), torch.randn(32, 64, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = norm(x)
    assert out.dtype is torch.bfloat16
    expected = nn.LayerNorm(64).cuda()(x.bfloat16().float())
    torch.testing.assert_close(out.float(), expected, rtol=2**-7, atol=2**-7)
