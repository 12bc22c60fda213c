"""Surgery: device, dtype, training flag and requires_grad of a place stay as they were."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from engine_core.errors import ArgumentError
from surgery_plugin.replacement import replace_modules

from .test_replacement import Wrap


class Scaled(nn.Module):
    """A new parameter, buffers and a kept module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("kernel", torch.ones(3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))


def scaled(module: nn.Module, name: str) -> nn.Module:
    return Scaled(module)


def dtypes(module: nn.Module) -> dict[str, torch.dtype]:
    return {name: tensor.dtype for name, tensor in [*module.named_parameters(), *module.named_buffers()]}


def test_new_tensors_take_the_dtype_of_the_module_and_whole_numbers_stay() -> None:
    model = nn.Sequential(nn.Linear(3, 3)).double()
    replace_modules(model, {nn.Linear: scaled})
    names = ("scale", "inner.weight", "inner.bias", "kernel")
    assert dtypes(model[0]) == {**dict.fromkeys(names, torch.float64), "steps": torch.int64}


def test_a_module_without_tensors_takes_the_dtype_of_what_is_around_it() -> None:
    inside = nn.Sequential(nn.Sequential(nn.ReLU()), nn.Linear(3, 3).bfloat16())
    model = nn.Sequential(inside, nn.Linear(3, 3))
    replace_modules(model, {nn.ReLU: scaled})
    assert dtypes(model[0][0]) == {"0.scale": torch.bfloat16, "0.kernel": torch.bfloat16, "0.steps": torch.int64}


def test_a_tensor_with_the_name_of_an_old_one_takes_its_dtype() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3).bfloat16(), nn.LayerNorm(3)))
    block = {nn.Sequential: lambda m, n: nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.PReLU()) if n else None}
    replace_modules(model, block)
    assert dtypes(model[0]) == {
        "0.weight": torch.bfloat16,
        "0.bias": torch.bfloat16,
        "1.weight": torch.float32,
        "1.bias": torch.float32,
        "2.weight": torch.float32,
    }


def test_what_could_have_several_dtypes_and_has_another_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 3).bfloat16(), nn.ReLU(), nn.Linear(3, 3).half())
    with pytest.raises(
        ArgumentError, match=r"made '1.scale' as torch.float32, but the place has dtypes .*bfloat16, .*16"
    ):
        replace_modules(model, {nn.ReLU: scaled})
    assert type(model[1]) is nn.ReLU


def test_what_is_carried_over_is_not_touched() -> None:
    odd = nn.Linear(3, 3).double()
    model = nn.Sequential(nn.ModuleDict({"a": nn.Linear(3, 3)}), odd)

    def carry(module: nn.Linear, name: str) -> nn.Module:
        new = nn.Linear(3, 3)
        new.weight, new.bias = odd.weight, module.bias
        return new

    bias = model[0]["a"].bias
    replace_modules(model, {nn.Linear: lambda m, n: carry(m, n) if n == "0.a" else None})
    assert model[0]["a"].weight is odd.weight
    assert model[0]["a"].bias is bias
    assert odd.weight.dtype is torch.float64


def test_a_meta_model_stays_on_meta() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 3))
    replace_modules(model, {nn.Linear: scaled, nn.LSTM: lambda m, n: nn.LSTM(3, 3)})
    assert {tensor.device.type for tensor in [*model.parameters(), *model.buffers()]} == {"meta"}
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in model.parameters())


def test_a_module_without_values_in_a_model_with_values_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(ArgumentError, match=r"made '0\.weight' on the meta device, but the model is on cpu"):
        replace_modules(model, {nn.Linear: lambda m, n: nn.Linear(3, 3, device="meta")})


def test_the_training_flag_is_that_of_the_place_and_of_parts_with_the_name() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), nn.ReLU())
    model[0][1].eval()
    model[1].eval()
    fresh = {nn.Sequential: lambda m, n: copy.deepcopy(m).eval().append(nn.ReLU()) if n else None, nn.ReLU: scaled}
    replace_modules(model, fresh)
    flags = {name: module.training for name, module in model.named_modules()}
    assert flags == {"": True, "0": True, "0.0": True, "0.1": False, "0.2": True, "1": False, "1.inner": False}


def test_a_parameter_in_the_place_of_a_frozen_one_is_frozen_and_others_are_not() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].weight.requires_grad_(False)
    model[1].requires_grad_(False)
    model[2].requires_grad_(False)
    policy: dict[Any, Any] = {
        nn.Linear: lambda m, n: {"0": nn.Linear(3, 3), "1": Scaled(m), "2": nn.Linear(3, 5)}[n],
    }
    replace_modules(model, policy)
    assert {name: p.requires_grad for name, p in model.named_parameters()} == {
        "0.weight": False,
        "0.bias": True,
        "1.scale": True,
        "1.inner.weight": False,
        "1.inner.bias": False,
        "2.weight": True,
        "2.bias": True,
    }


def test_a_wrappers_own_parameter_is_not_frozen_for_having_the_name_of_a_kept_one() -> None:
    model = nn.Sequential(nn.Linear(3, 3).requires_grad_(False))

    def with_bias(module: nn.Module, name: str) -> nn.Module:
        wrapper = Wrap(module)
        wrapper.bias = nn.Parameter(torch.zeros(3))
        return wrapper

    replace_modules(model, {nn.Linear: with_bias})
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["0.bias"]
