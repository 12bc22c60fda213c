"""BlurPool, SqueezeExcite, GatedLinearUnits, StochasticDepth as algorithms, and their effect on training on digits."""

import copy

import pytest
import torch
from surgery_parts import digits, run_init, train_on_digits
from torch import nn
from torch.nn import functional as F

from engine_core import Engine, Event, Logger, State
from engine_core.errors import NothingReplacedWarning
from surgery_plugin import (
    BlurPool,
    GatedLinearUnits,
    SqueezeExcite,
    StochasticDepth,
    apply_blurpool,
    apply_squeeze_excite,
)


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(288, 10),
    )


def padded_digits():
    """Return images (1797, 1, 12, 12), with room to be shifted, and classes."""
    x, y = digits()
    return F.pad(x, (2, 2, 2, 2)), y


def train_on_padded(model, algorithms=(), *, epochs=8, **settings):
    settings.setdefault("optimizers", lambda parameters: torch.optim.Adam(parameters, lr=1e-3))
    return train_on_digits(model, algorithms, images=padded_digits(), max_duration=f"{epochs}ep", **settings)


@torch.no_grad()
def sensitivity(model, x):
    """Return how far outputs move under a shift by one pixel, relative to how far they lie apart."""
    model.eval()
    outputs = model(x)
    moved = (model(x.roll(1, -1)) - outputs).norm(dim=1).mean()
    return float(moved / (outputs - outputs.mean(0)).norm(dim=1).mean())


@torch.no_grad()
def accuracy(model, x, y):
    return float((model.eval()(x).argmax(1) == y).float().mean())


@pytest.mark.parametrize("kind", [nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.Conv2d(16, 8, 1, 2)])
def test_layers_of_random_nets_change_less_under_a_shift(kind):
    """Of smooth inputs, the values two pixels apart: shifted by one pixel they are others, blurred less so."""
    x = F.avg_pool2d(torch.randn(64, 16, 36, 36), 5, 1)
    plain, blurred = nn.Sequential(kind), nn.Sequential(copy.deepcopy(kind))
    apply_blurpool(blurred)
    assert sensitivity(blurred, x) < 0.9 * sensitivity(plain, x)


@pytest.mark.full
def test_nets_trained_on_digits_change_less_under_a_shift():
    """The documented effect: half the sensitivity, for two percent of accuracy on these tiny images."""
    x, y = (part[1200:] for part in padded_digits())
    plain, blurred = net(), net()
    train_on_padded(plain)
    train_on_padded(blurred, BlurPool())
    assert accuracy(plain, x, y) > 0.95 and accuracy(blurred, x, y) > 0.92
    assert sensitivity(blurred, x) < 0.7 * sensitivity(plain, x)


CONVS = "Conv2d of 16 or more input channels with a stride"
POOLS = "MaxPool2d with a stride"


@pytest.mark.parametrize(
    ("settings", "missed"),
    [({}, f"{CONVS} or {POOLS}"), ({"replace_convs": False}, POOLS), ({"replace_maxpools": False}, CONVS)],
)
def test_a_model_without_what_is_looked_for_causes_a_warning_by_name(settings, missed):
    model = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2))
    with pytest.warns(NothingReplacedWarning, match=f"^blurpool changed nothing: the model has no {missed}$"):
        assert run_init(model, BlurPool(**settings)) == [{"blurpool/replaced": 0}]


FORM = ("squeeze_excite", {"min_channels": 8, "latent_channels": 0.5})


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)
    )


def initial(algorithm, seed, rank=0):
    """Return the new weights as a Trainer's INIT leaves them, on any of two processes."""
    model = small_net() if isinstance(algorithm, SqueezeExcite) else two_layers()
    run_init(model, algorithm, seed=seed, rank=rank, world_size=2)
    return [value for name, value in model.state_dict().items() if "squeeze_excite" in name or "gate." in name]


def same(one, other):
    return len(one) == len(other) > 0 and all(map(torch.equal, one, other))


def gates_of(model, x):
    """Return the gates of the images (n, 16)."""
    seen = []
    excite = model[2].squeeze_excite.excite
    handle = excite.register_forward_hook(lambda _, __, logits: seen.append(torch.sigmoid(logits)))
    with torch.no_grad():
        model(x)
    handle.remove()
    return seen[0]


def test_on_digits_the_net_learns_which_channels_count():
    """At first each gate is about one half, whatever the image; then channels differ, and images do."""
    x, y = digits()
    model, trained = small_net(), small_net()
    apply_squeeze_excite(model, min_channels=8, latent_channels=0.5)
    adam = torch.optim.Adam(trained.parameters(), lr=5e-3)
    train_on_digits(trained, [FORM], optimizers=adam, max_duration="6ep")
    before, after = gates_of(model, x[1200:]), gates_of(trained, x[1200:])
    apart = [float(gates.mean(0).max() - gates.mean(0).min()) for gates in (before, after)]
    assert (before - 0.5).abs().max() < 0.2
    assert apart[0] < 0.15 and apart[1] > 0.2
    assert after.std(0).max() > before.std(0).max()
    assert (trained(x[1200:]).argmax(1) == y[1200:]).float().mean() > 0.9


@pytest.mark.parametrize("algorithm", [SqueezeExcite(8, 0.5), GatedLinearUnits()], ids=["excite", "gates"])
def test_new_weights_follow_from_the_seed_of_the_run_alone_on_all_processes(algorithm):
    first, before = initial(algorithm, 1), torch.get_rng_state()
    torch.rand(3)
    assert same(initial(algorithm, 1), first) and same(initial(algorithm, 1, rank=1), first)
    assert not same(initial(algorithm, 2), first)
    small_net() if isinstance(algorithm, SqueezeExcite) else two_layers()
    assert torch.equal(torch.get_rng_state(), before)


def two_layers():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


class BasicBlock(nn.Module):
    def __init__(self, size, out):
        super().__init__()
        self.linear = nn.Linear(size, out)
        self.norm = nn.BatchNorm1d(out)
        self.keeps = size == out
        self.calls = 0

    def forward(self, x):
        self.calls += self.training
        out = F.relu(self.norm(self.linear(x)))
        return x + out if self.keeps else out


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(BasicBlock(64, 32), BasicBlock(32, 32), BasicBlock(32, 32), nn.Linear(32, 10))


def init(model, algorithm, seed=3, **settings):
    state = State(model=model, algorithms=[algorithm], seed=seed, **settings)
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.INIT)
    return state


def test_the_seed_of_the_run_decides_on_the_draws_and_torch_is_not_used():
    outs, x = [], torch.randn(16, 64)
    for seed in (3, 3, 4):
        model = make_model()
        init(model, StochasticDepth(drop_rate=0.5), seed)
        before = torch.get_rng_state()
        outs.append(model(x))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


def test_parameters_may_go_without_gradient_only_where_blocks_are_not_computed():
    assert StochasticDepth(drop_per="batch").find_unused_parameters is True
    assert StochasticDepth(drop_per="sample").find_unused_parameters is False


@pytest.mark.parametrize(
    ("first", "per"),
    [("the state, then init", "batch"), ("init, then the state", "sample"), ("another run first", "batch")],
)
def test_a_run_that_is_resumed_elsewhere_draws_and_computes_the_same(first, per):
    """What has computed once is known to keep its shape, so that no block computes for nothing, and its norm stays."""
    x, model, algorithm = torch.randn(16, 64), make_model(), StochasticDepth(drop_rate=0.7, drop_per=per)
    init(model, algorithm)
    for _ in range(6):
        model(x)
    weights, saved = {key: w.clone() for key, w in model.state_dict().items()}, algorithm.state_dict()
    expected = [model(x) for _ in range(6)]
    other, again = make_model(), StochasticDepth(drop_rate=0.7, drop_per=per)
    used = init(make_model(), again, seed=5) if first == "another run first" else None
    if first == "init, then the state":
        run = init(other, again, seed=99)
    again.load_state_dict(saved)
    if first != "init, then the state":
        run = init(other, again, seed=99)
    assert run is not used
    other.load_state_dict(weights)
    assert all(torch.equal(other(x), out) for out in expected)
    for key, weight in model.state_dict().items():
        assert torch.equal(other.state_dict()[key], weight)


def train_blocks(algorithms):
    """Return the net after 80 steps, and its loss."""
    model, (images, targets) = make_model(), digits()
    flat = images.flatten(1), targets
    train_on_digits(model, algorithms, images=flat, max_duration="4ep")
    with torch.no_grad():
        return model, F.cross_entropy(model.eval()(flat[0][:1200]), targets[:1200]).item()


def test_on_digits_the_last_block_computes_as_rarely_as_its_rate_says_and_the_net_learns():
    """80 steps: with L = 3 and a rate of 0.6 the blocks compute in 80, 60 % and 40 % of them, but for the first one."""
    model, loss = train_blocks([StochasticDepth(drop_rate=0.6, drop_per="batch")])
    blocks = [model[place].block for place in range(3)]
    assert blocks[0].calls == 80  # it has no identity
    assert 35 <= blocks[1].calls <= 61  # 48 and three standard deviations
    assert 19 <= blocks[2].calls <= 46  # 32
    assert loss < 0.5
