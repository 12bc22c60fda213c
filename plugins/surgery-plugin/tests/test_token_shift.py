"""Shifted norms against the paper's sum, in models and runs, and what is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from surgery_parts import LanguageModel, check_resumed_and_loaded, run_init, train_on_sentences
from torch import nn

from engine_core.errors import ArgumentError
from surgery_plugin import ComputeDtypeLayerNorm, FusedLayerNorm, ShiftedNorm, TokenShift, apply_token_shift


@given(st.integers(1, 3), st.integers(1, 4), st.floats(0, 1, width=32))
def test_each_token_keeps_a_share_and_gets_the_rest_from_the_one_before(n, length, share):
    x, norm = torch.randn(n, length, 5), nn.LayerNorm(5)
    shifted = ShiftedNorm(norm, 5, share)
    with torch.no_grad():
        shifted.share += torch.arange(5.0)
    normed, shares = norm(x), torch.full((5,), share) + torch.arange(5.0)
    for place in range(length):
        before = normed[:, place - 1] if place else torch.zeros(n, 5)
        assert torch.equal(shifted(x)[:, place], normed[:, place] + shares * (before - normed[:, place]))


def test_under_autocast_it_keeps_the_dtype_that_the_norm_gives():
    shifted, x = ShiftedNorm(ComputeDtypeLayerNorm(5), 5), torch.randn(2, 3, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert shifted(x).dtype is torch.bfloat16
    assert shifted(x).dtype is torch.float32


def test_the_norms_of_blocks_are_found_whatever_their_class_and_the_last_norm_is_not():
    model = LanguageModel()
    assert apply_token_shift(model, share=0.5) == [
        f"blocks.{block}.norm{number}" for block in (0, 1) for number in (1, 2)
    ]
    assert torch.equal(model.blocks[0].norm2.share, torch.full((8,), 0.5))
    assert apply_token_shift(model, norms="*norm*") == ["norm"]


def test_the_encoder_of_torch_computes_alike_in_evaluation_without_its_fast_path():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True, norm_first=True)
    encoder, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(2, 5, 8)
    assert len(apply_token_shift(encoder, share=0.5)) == 4
    trained = encoder(x)
    with torch.no_grad():
        torch.testing.assert_close(encoder.eval()(x), trained)


def test_a_norm_that_is_fused_later_is_so_inside_in_either_order_of_the_list():
    for algorithms in ([TokenShift(), FusedLayerNorm()], [FusedLayerNorm(), TokenShift()]):
        run_init(model := LanguageModel(), *algorithms)
        assert type(model.blocks[0].norm1.norm) is ComputeDtypeLayerNorm


def test_what_the_token_before_decides_is_learned_with_it_and_not_without():
    """Blocks that look at no other token can't know the sum of two."""
    plain, shifted = (
        train_on_sentences(algorithms, max_duration="30ep").state.loss.item() for algorithms in ([], [TokenShift()])
    )
    assert shifted < plain - 0.5


def test_a_resumed_run_and_a_loaded_model_have_the_same_weights(tmp_path):
    check_resumed_and_loaded(lambda: TokenShift(["blocks.*.norm2"], share=0.5), tmp_path)


def encoder(**settings):
    return nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, **settings))


@pytest.mark.parametrize(
    ("model", "norms", "said"),
    [
        (nn.Sequential(nn.LayerNorm(4)), None, r"no norm named \*\.norm1 or .*, but 0: write .* as in norms=\['0'\]"),
        (LanguageModel(), ["blocks.*.norm1", "*.nrm2"], r"no norm named \*\.nrm2, but blocks\.0\.norm1, "),
        (encoder(batch_first=True), None, "'0.norm1' normalises the residual sum, .* with norm_first=True"),
        (encoder(norm_first=True), None, r"'0.norm1' gets \(length, n, channels\), .* with batch_first=True"),
        (nn.Sequential(nn.ReLU()), "0", "'0' is a ReLU, which has neither normalized_shape nor a weight"),
    ],
)
def test_which_norms_begin_a_branch_of_rows_is_not_guessed(model, norms, said):
    with pytest.raises(ArgumentError, match=said):
        apply_token_shift(model, **({} if norms is None else {"norms": norms}))


def test_what_is_not_rows_of_tokens_is_refused():
    with pytest.raises(ArgumentError, match=r"a LayerNorm gives \(6, 5\), .* needs \(n, length, channels\)"):
        ShiftedNorm(nn.LayerNorm(5), 5)(torch.randn(6, 5))
