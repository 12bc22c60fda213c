"""FusedLayerNorm in models and runs: what is replaced, where in the order, and what it does to a training on digits."""

from typing import Any

import pytest
import torch
from surgery_parts import digits, run_init, train_on_digits
from torch import nn
from torch.nn import functional as F

from engine_core import Algorithm, AlgorithmMetadata, Event, State
from surgery_plugin import ComputeDtypeLayerNorm, FusedLayerNorm, apply_fused_layernorm


class OwnNorm(nn.LayerNorm):
    pass


def test_exactly_nn_layernorm_is_replaced_and_no_subclass() -> None:
    model = nn.Sequential(nn.LayerNorm(4), OwnNorm(4), nn.Sequential(nn.LayerNorm(4)), nn.GroupNorm(2, 4))
    assert apply_fused_layernorm(model) == ["0", "2.0"]
    assert [type(layer) for layer in model] == [ComputeDtypeLayerNorm, OwnNorm, nn.Sequential, nn.GroupNorm]
    assert apply_fused_layernorm(model) == []


def test_a_shared_norm_stays_shared_and_flags_and_hooks_stay() -> None:
    norm, calls = nn.LayerNorm(4), []
    norm.register_forward_hook(lambda *_: calls.append(1))
    model = nn.Sequential(norm, nn.ReLU(), norm).eval()
    norm.weight.requires_grad_(False)
    apply_fused_layernorm(model)
    assert model[0] is model[2] and not model[0].training and not model[0].weight.requires_grad
    model(torch.randn(2, 4))
    assert calls == [1, 1]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("nested", [True, False])
def test_an_encoder_in_evaluation_computes_bit_for_bit_what_it_did(nested) -> None:
    """With torch's fused kernel of a whole layer, which keeps reading the norms' parameters."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval()
    x, mask = torch.randn(3, 5, 8), torch.arange(5)[None] >= torch.tensor([5, 3, 2])[:, None]
    with torch.no_grad():
        before = encoder(x, src_key_padding_mask=mask)
        assert len(apply_fused_layernorm(encoder)) == 4
        assert torch.equal(encoder(x, src_key_padding_mask=mask), before)


class AddNorm(Algorithm):
    metadata = AlgorithmMetadata(events=("init",), writes=("model",))

    def match(self, event: Event, state: State) -> bool:
        return event is Event.INIT

    def apply(self, event: Event, state: State, logger: Any) -> None:
        state.model.append(nn.LayerNorm(4))


@pytest.mark.parametrize("step", [1, -1])
def test_norms_that_others_put_in_are_replaced_too(step) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    run_init(model, *[AddNorm(), FusedLayerNorm()][::step])
    assert type(model[1]) is ComputeDtypeLayerNorm


class Recorder(nn.Module):
    """Remembers the dtype of what passes in training."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen = x.dtype
        return x


def test_on_digits_in_mixed_precision_norms_give_bfloat16_and_the_loss_hardly_differs() -> None:
    images, targets = digits()[0].flatten(1), digits()[1]
    losses, seen = [], []
    for algorithms in ([], [FusedLayerNorm()]):
        torch.manual_seed(1)
        model = nn.Sequential(nn.LayerNorm(64), Recorder(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        train_on_digits(model, algorithms, images=(images, targets), precision="amp_bf16", max_duration="2ep")
        losses.append(F.cross_entropy(model.eval()(images), targets).item())
        seen.append(model[1].seen)
    assert seen == [torch.float32, torch.bfloat16]
    assert losses[0] < 1  # guessing has 2.3
    assert losses[1] == pytest.approx(losses[0], rel=0.02) and losses[1] != losses[0]
