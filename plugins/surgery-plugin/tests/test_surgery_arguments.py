"""Anything but a model, generator or state is refused by name, before anything is changed."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from surgery_plugin import (
    StochasticDepth,
    apply_blurpool,
    apply_channels_last,
    apply_fused_layernorm,
    apply_gated_linear_units,
    apply_squeeze_excite,
    apply_stochastic_depth,
)

DRAWING = [apply_gated_linear_units, apply_squeeze_excite, apply_stochastic_depth]


@pytest.mark.parametrize("function", [apply_blurpool, apply_channels_last, apply_fused_layernorm, *DRAWING])
def test_anything_but_a_model_is_refused(function: Callable[[Any], Any]) -> None:
    for model in (None, nn.Linear):
        with pytest.raises(TypeError, match=f"^model: {type(model).__name__} is not a torch.nn.Module$"):
            function(model)


@pytest.mark.parametrize("found", [True, False])
@pytest.mark.parametrize("function", DRAWING)
def test_anything_but_a_generator_is_refused_whether_or_not_there_is_something_to_draw(
    function: Callable[..., Any], *, found: bool
) -> None:
    layers: list[nn.Module] = [nn.Conv2d(64, 64, 3), nn.TransformerEncoderLayer(4, 1, 8)] if found else [nn.ReLU()]
    model = nn.Sequential(*layers)
    before = copy.deepcopy(model)
    with pytest.raises(TypeError, match=r"generator=3 \(int\) has to be a torch\.Generator or None"):
        function(model, generator=3)
    assert list(model) == layers and str(model) == str(before)


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        ({"a": None, "b": "nope"}, "'nope' in the state of stochastic_depth, for the block 'b', is not a dtype"),
        ({"b": 3}, "3 in the state of stochastic_depth, for the block 'b', is not a dtype"),
        (["b"], r"gives=\['b'\] in the state of stochastic_depth has to be names of dtypes by block"),
    ],
)
def test_a_state_with_no_dtypes_is_refused_and_nothing_taken(gives: Any, message: str) -> None:
    algorithm, other = StochasticDepth(), torch.Generator().manual_seed(8).get_state()
    saved = {"generator": torch.Generator().manual_seed(7).get_state(), "gives": {"a": "float32", "b": None}}
    algorithm.load_state_dict(saved)
    with pytest.raises((ValueError, TypeError), match=message):
        algorithm.load_state_dict({"generator": other, "gives": gives})
    assert algorithm.state_dict()["gives"] == saved["gives"]
    assert torch.equal(algorithm.state_dict()["generator"], saved["generator"])
