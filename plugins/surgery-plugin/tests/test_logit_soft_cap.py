"""Capped logits against their formula, in models and runs, and what is refused."""

import pytest
import torch
from surgery_parts import Block, LanguageModel, check_resumed_and_loaded
from torch import nn

from engine_core.errors import ArgumentError
from surgery_plugin import LogitSoftCap, SoftCappedLinear, apply_logit_soft_cap


@pytest.mark.parametrize("bias", [True, False])
def test_logits_are_bent_below_the_cap_and_small_ones_hardly_change(bias):
    linear, x = nn.Linear(4, 9, bias=bias), 100 * torch.randn(2, 5, 4)
    logits, capped = linear(x), SoftCappedLinear(linear, cap=3.0)
    assert torch.equal(capped(x), 3.0 * torch.tanh(logits / 3.0))
    assert capped(x).abs().max() <= 3 < logits.abs().max()
    torch.testing.assert_close(capped(x / 1e4), linear(x / 1e4), rtol=0.1, atol=1e-3)


def test_the_head_that_is_tied_stays_tied():
    model, tokens = LanguageModel(), torch.arange(8).view(2, 4)
    logits = model(tokens)
    assert apply_logit_soft_cap(model, cap=2) == ["head"]
    assert model.head.weight is model.embed.weight
    assert torch.equal(model(tokens), 2 * torch.tanh(logits / 2))


def test_a_resumed_run_and_a_loaded_model_have_the_same_weights(tmp_path):
    check_resumed_and_loaded(lambda: LogitSoftCap(cap=1.0, layer="head"), tmp_path)


class OwnLinear(nn.Linear):
    pass


def test_the_last_one_may_be_in_a_container_beside_another():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    assert apply_logit_soft_cap(model) == ["1.1"]


@pytest.mark.parametrize(
    ("model", "arguments", "said"),
    [
        (nn.Sequential(Block(4), Block(4)), {}, "'1.mlp', is in one of several Block, so it does not give the logits"),
        (nn.Sequential(nn.Linear(4, 4), OwnLinear(4, 4)), {}, "'1' is a OwnLinear, which may compute something else"),
        (LanguageModel(), {"layer": "heads"}, r"layer='heads' is not a module of LanguageModel; did you mean 'head'\?"),
        (
            LanguageModel(),
            {"layer": "norm"},
            "layer='norm' is a LayerNorm, not a Linear, of which .* has 'blocks.0.mix'",
        ),
    ],
)
def test_which_layer_gives_the_logits_is_not_guessed(model, arguments, said):
    with pytest.raises(ArgumentError, match=said):
        apply_logit_soft_cap(model, **arguments)
