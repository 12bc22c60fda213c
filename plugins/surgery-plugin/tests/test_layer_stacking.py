"""Layer stacking against torch by hand, resumed in each phase, on two ranks, and what is refused."""

import copy

import pytest
import torch
from parts import trainer
from torch import nn

from engine_core import by_name
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.run import load_model
from surgery_plugin import LayerStacking

BATCHES, GROWS = 8, 4
X = torch.randn(BATCHES * 6, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randint(3, (len(X),), generator=torch.Generator().manual_seed(2))
DATA = list(zip(X.split(6), Y.split(6), strict=True))


class Block(nn.Module):
    """With a buffer in training, and weights of two kinds."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.inner = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 6))

    def forward(self, x):
        return x + self.inner(self.norm(x))


class Net(nn.Module):
    def __init__(self, depth=5):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


OPTIMIZERS = {
    "adamw": adamw,
    "two by name": by_name({"* ndim>=2": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), "*": adamw}),
}


def train(*, model=None, optimizers=adamw, first=2, **settings):
    settings = {"max_duration": "1ep", "grad_clip_norm": 1.0, "eval_dataloader": DATA[:1], "seed": 1, **settings}
    given = {"algorithms": [LayerStacking(first, grow=f"{GROWS}ba")], "loss_fn": nn.CrossEntropyLoss()}
    with trainer(DATA, model or Net(), **{"optimizers": optimizers, **given, **settings}) as made:
        made.fit()
    return made


def step(model, optimizers, batch):
    x, y = batch
    for optimizer in optimizers:
        optimizer.zero_grad()
    nn.CrossEntropyLoss()(model(x), y).backward()
    nn.utils.clip_grad_norm_([p for o in optimizers for group in o.param_groups for p in group["params"]], 1.0)
    for optimizer in optimizers:
        optimizer.step()


def by_hand(make):
    """Train the short model with torch alone, build the long one, copy weights and moments, and train on."""
    short = Net()
    del short.layers[2:]
    optimizers = make(short.named_parameters()) if make is not adamw else [make(short.parameters())]
    for batch in DATA[:GROWS]:
        step(short, optimizers, batch)
    whole = Net()
    whole.load_state_dict(short.state_dict(), strict=False)
    for place in (2, 3, 4):
        whole.layers[place].load_state_dict(short.layers[place % 2].state_dict())
    former, own = dict(short.named_parameters()), dict(whole.named_parameters())
    names = {name: name for name in former}
    names |= {
        f"layers.{i}.{k}": f"layers.{i % 2}.{k}" for i in (2, 3, 4) for k, _ in whole.layers[i].named_parameters()
    }
    grown = []
    for optimizer in optimizers:
        trained = set(optimizer.param_groups[0]["params"])
        kept = {
            own[name]: copy.deepcopy(optimizer.state[former[s]]) for name, s in names.items() if former[s] in trained
        }
        settings = {k: v for k, v in optimizer.param_groups[0].items() if k not in ("params", "param_names")}
        grown.append(type(optimizer)([{"params": list(kept), **settings}], lr=settings["lr"]))
        grown[-1].state.update(kept)
    for batch in DATA[GROWS:]:
        step(whole, grown, batch)
    return whole


def assert_same(model, other):
    own, theirs = model.state_dict(), other.state_dict()
    assert own.keys() == theirs.keys()
    assert [name for name in own if not torch.equal(own[name], theirs[name])] == []


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_it_is_the_training_by_hand_bit_for_bit(make):
    assert_same(train(optimizers=make).state.model, by_hand(make))


def test_optimizers_that_were_made_before_lose_the_blocks_and_get_them_back():
    model = Net()
    assert_same(train(model=model, optimizers=adamw(model.parameters())).state.model, by_hand(adamw))


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_run_resumed_in_each_phase_is_the_same_bit_for_bit(tmp_path, make):
    saver = CheckpointSaver(tmp_path, interval="1ba", keep_last=None)
    whole = train(optimizers=make, callbacks=[saver])
    for batch in (GROWS - 1, GROWS, GROWS + 1, BATCHES - 1):
        (path,) = (p for p in tmp_path.iterdir() if p.name.endswith(f"ba{batch}"))
        resumed = train(optimizers=make, load_path=path)
        assert_same(resumed.state.model, whole.state.model)
        for one, other in zip(resumed.state.optimizers, whole.state.optimizers, strict=True):
            torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)
        loaded = load_model(path, Net)
        assert len(loaded.layers) == (2 if batch <= GROWS else 5)
