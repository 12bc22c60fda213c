"""The whitened stem against plain linear algebra, in models, in runs, and what is refused."""

import pytest
import torch
from surgery_parts import digits, run_init, train_on_digits
from torch import nn
from torch.nn import functional as F

from engine_core import State, Trainer
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import ArgumentError, EngineError
from engine_core.run import load_model
from surgery_plugin import ChannelsLast, SqueezeExcite, WhitenedConv2d, WhitenedStem, apply_whitened_stem


def images(n=64, channels=3):
    """Return images whose neighbouring pixels and channels are alike."""
    noise = torch.randn(n, channels, 9, 9, generator=torch.Generator().manual_seed(2))
    mixed = torch.einsum("nchw,cd->ndhw", noise, torch.tensor([[1.0, 0.5, 0.2], [0, 1, 0.7], [0, 0, 0.3]]))
    return F.avg_pool2d(mixed, 2, stride=1)


def covariance(values):
    """Return that of channels (c, c), over rows and places of (n, c, h, w)."""
    flat = values.transpose(0, 1).flatten(1).double()
    return torch.cov(flat, correction=0)


def net(**settings):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 10, 3, **settings), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))


GEOMETRIES = [{}, {"stride": 2}, {"padding": 1}, {"padding": 2, "padding_mode": "reflect"}, {"dilation": 2}]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_what_the_filters_give_on_the_batch_has_the_covariance_1_up_to_eps(geometry):
    model, x, eps = net(**geometry), images(), 1e-3
    shape = model[0](x).shape
    assert apply_whitened_stem(model, x, eps=eps) == ["0"]
    values = model[0].whiten(x)[:, :27].detach()
    padded, seen = (F.pad(x, [2] * 4, mode="reflect"), {}) if "padding_mode" in geometry else (x, geometry)
    patches = F.unfold(padded, 3, **seen)
    variances = torch.linalg.eigvalsh(torch.cov(patches.transpose(0, 1).flatten(1).double(), correction=0)).flip(0)
    torch.testing.assert_close(covariance(values), torch.diag(variances / (variances + eps)), atol=1e-4, rtol=0)
    assert torch.equal(model[0].whiten.weight[27:], -model[0].whiten.weight[:27])
    assert model[0](x).shape == shape


def test_fewer_directions_are_those_of_the_largest_variance():
    whole, few, x = net(), net(), images()
    apply_whitened_stem(whole, x)
    apply_whitened_stem(few, x, directions=5)
    assert torch.equal(few[0].whiten.weight[:5], whole[0].whiten.weight[:5])
    assert few[0].whiten.out_channels == 10


def test_the_filters_are_frozen_and_what_mixes_them_joins_the_optimizer():
    model = net()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    apply_whitened_stem(model, images(), optimizers=optimizer)
    assert [name for name, p in model[0].named_parameters() if not p.requires_grad] == ["whiten.weight"]
    trained = optimizer.param_groups[0]["params"]
    assert [p is q for p, q in zip(trained[-2:], model[0].mix.parameters(), strict=True)] == [True, True]
    assert apply_whitened_stem(model, images()) == []


def digits_net():
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.Flatten(), nn.Linear(72, 10)
    return nn.Sequential(*layers)


def test_a_run_has_the_filters_of_its_first_batch_and_they_stay():
    model = digits_net()
    made = train_on_digits(model, [WhitenedStem()], max_duration="1ep")
    by_hand = digits_net()
    apply_whitened_stem(by_hand, digits()[0][:60])
    assert torch.equal(made.state.model[0].whiten.weight, by_hand[0].whiten.weight)
    assert not torch.equal(made.state.model[0].mix.weight, by_hand[0].mix.weight)


def test_it_comes_before_the_other_surgery():
    x, y = digits()
    model = digits_net()
    algorithms = [ChannelsLast(), SqueezeExcite(min_channels=8, latent_channels=2), WhitenedStem()]
    given = {"device": "cpu", "progress_bar": False, "loss_fn": nn.CrossEntropyLoss()}
    with Trainer(model, [(x[:60], y[:60])], algorithms=algorithms, **given) as trainer:
        stem = trainer.state.model[0]
    assert type(stem) is WhitenedConv2d
    assert type(stem.mix).__name__ == "SqueezeExciteConv2d"
    assert stem.whiten.weight.is_contiguous(memory_format=torch.channels_last)


def test_a_resumed_run_and_a_loaded_model_need_no_batch(tmp_path, monkeypatch):
    saver = CheckpointSaver(tmp_path, interval="10ba", keep_last=None)
    whole = train_on_digits(digits_net(), [WhitenedStem()], max_duration="2ep", callbacks=[saver])
    monkeypatch.setattr(State, "peek_batch", lambda state: pytest.fail("it looked"))
    first = min(path for path in tmp_path.iterdir() if path.name.endswith("ba10"))
    resumed = train_on_digits(digits_net(), [WhitenedStem()], max_duration="2ep", load_path=first)
    weights = whole.state.model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in resumed.state.model.state_dict().items())
    loaded = load_model(tmp_path, digits_net)
    assert all(torch.equal(weights[name], value) for name, value in loaded.state_dict().items())


class Holder(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        (nn.Sequential(nn.Linear(2, 2)), images(), "needs a Conv2d, and Sequential has none: leave it out"),
        (Holder(nn.Conv2d(4, 4, 3, groups=2)), images(), "'layer', is a Conv2d with groups=2"),
        (Holder(nn.LazyConv2d(4, 3)), images(), "'layer', is a LazyConv2d with groups=1"),
        (Holder(nn.Conv2d(3, 4, 3)), torch.zeros(4, 7), r"\(n, 3, height, width\).*is a Tensor torch.float32 of shape"),
        (Holder(nn.Conv2d(3, 4, 3)), torch.zeros(4, 1, 5, 5), r"of shape \(4, 1, 5, 5\)"),
        (Holder(nn.Conv2d(3, 4, 3)), torch.zeros(4, 3, 5, 5, dtype=torch.uint8), "Tensor torch.uint8 of shape"),
        (Holder(nn.Conv2d(3, 4, 3)), ["text"], "the input of the model is a list$"),
    ],
)
def test_what_has_no_patches_to_whiten_is_refused(model, given, said):
    with pytest.raises(ArgumentError, match=said):
        apply_whitened_stem(model, given)


@pytest.mark.parametrize("wrong", [{"eps": 0}, {"directions": 0}])
def test_impossible_numbers_are_refused(wrong):
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        WhitenedStem(**wrong)


def test_a_loop_without_a_first_batch_is_told_what_to_set():
    with pytest.raises(EngineError, match=r"state\.loop\.peek"):
        run_init(digits_net(), WhitenedStem())
