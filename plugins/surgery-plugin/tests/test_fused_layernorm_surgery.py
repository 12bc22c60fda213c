"""FusedLayerNorm in models and runs: what is replaced, where in the order, and what it does to a training on digits."""

from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from engine_core import Algorithm, AlgorithmMetadata, Engine, Event, Logger, State, Trainer
from engine_core.errors import NothingReplacedWarning
from surgery_plugin import ComputeDtypeLayerNorm, FusedLayerNorm, apply_fused_layernorm
from surgery_plugin.passes import sort_fused_layernorm_last


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


def test_a_model_without_layernorm_causes_a_warning_by_name() -> None:
    state = State(model=nn.Sequential(OwnNorm(4)), algorithms=[FusedLayerNorm()])
    with Engine(state, Logger()) as engine, pytest.warns(NothingReplacedWarning, match="fused_layernorm"):
        engine.run_event(Event.INIT)


class AddNorm(Algorithm):
    metadata = AlgorithmMetadata(events=("init",), writes=("model",))

    def match(self, event: Event, state: State) -> bool:
        return event is Event.INIT

    def apply(self, event: Event, state: State, logger: Any) -> None:
        state.model.append(nn.LayerNorm(4))


@pytest.mark.parametrize("place", [0, 1])
def test_norms_that_others_put_in_are_replaced_too(place) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    algorithms: list[Algorithm] = [AddNorm()]
    algorithms.insert(place, FusedLayerNorm())
    with Engine(State(model=model, algorithms=algorithms), Logger()) as engine:
        engine.run_event(Event.INIT)
    assert type(model[1]) is ComputeDtypeLayerNorm


def test_the_pass_moves_it_to_the_back_and_keeps_the_others() -> None:
    a, b, norm = AddNorm(), AddNorm(), FusedLayerNorm()
    assert sort_fused_layernorm_last([norm, a, b], Event.INIT) == [a, b, norm]
    assert sort_fused_layernorm_last.metadata.events == (Event.INIT,)


class Recorder(nn.Module):
    """Remembers the dtype of what passes in training."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen = x.dtype
        return x


def train(algorithms: list[Algorithm], precision: str) -> tuple[nn.Sequential, float]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.LayerNorm(64), Recorder(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    x, y = load_digits(return_X_y=True)
    images, targets = torch.tensor(x[:1280] / 16, dtype=torch.float32), torch.tensor(y[:1280])
    with Trainer(
        model,
        list(zip(images.split(64), targets.split(64), strict=True)),
        max_duration="2ep",
        loss_fn=F.cross_entropy,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        algorithms=algorithms,
        precision=precision,
        device="cpu",
        seed=1,
    ) as trainer:
        trainer.fit()
    return model, F.cross_entropy(model.eval()(images), targets).item()


def test_on_digits_in_float32_the_training_is_the_same_bit_for_bit() -> None:
    (one, _), (other, _) = train([], "fp32"), train([FusedLayerNorm()], "fp32")
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert type(other[0]) is ComputeDtypeLayerNorm


def test_on_digits_in_mixed_precision_norms_give_bfloat16_and_the_loss_hardly_differs() -> None:
    (plain, loss), (fused, other) = train([], "amp_bf16"), train([FusedLayerNorm()], "amp_bf16")
    assert (plain[1].seen, fused[1].seen) == (torch.float32, torch.bfloat16)
    assert loss < 1  # guessing has 2.3
    assert other == pytest.approx(loss, rel=0.02)
    assert other != loss
