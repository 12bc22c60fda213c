"""Layer stacking against torch by hand, resumed in each phase, and what is refused."""

import copy

import pytest
import torch
from parts import trainer
from surgery_parts import run_init
from torch import nn

from engine_core import Event, by_name
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import ArgumentError, NothingReplacedWarning
from engine_core.run import load_model
from engine_core_author.probes import at_events
from surgery_plugin import LayerStacking, Stack, StochasticBlock, StochasticDepth
from surgery_plugin.replacement import grow

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
    with trainer(DATA, Net() if model is None else model, **{"optimizers": optimizers, **given, **settings}) as made:
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


def at(event, batch, do):
    """Return a callback that calls `do` with the state, once."""
    return at_events([event], lambda _, state: do(state) if state.timestamp.batch == batch else None)


def test_going_back_to_before_the_growth_takes_the_blocks_out_and_they_grow_again():
    kept, depths = [], []
    callbacks = [
        at(Event.BATCH_CHECKPOINT, GROWS - 1, lambda state: kept.append(state.loop.snapshot())),
        at(Event.AFTER_TRAIN_BATCH, GROWS + 1, lambda state: state.loop.go_back(kept[0])),
        at_events([Event.AFTER_TRAIN_BATCH], lambda _, state: depths.append(len(state.model.layers))),
    ]
    made = train(callbacks=callbacks)
    assert depths == [2] * GROWS + [5, 2, 5, 5]
    assert [len(o.param_groups[0]["params"]) for o in made.state.optimizers] == [len([*made.state.model.parameters()])]


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_a_compiled_model_sees_the_blocks(is_wrapped):
    model = Net()
    if is_wrapped:
        model = torch.compile(model, backend="eager")
    else:
        model.compile(backend="eager")
    own, plain = train(model=model).state.model.state_dict(), by_hand(adamw).state_dict()
    assert [torch.equal(a, b) for a, b in zip(own.values(), plain.values(), strict=True)] == [True] * len(plain)


def test_the_blocks_that_wait_are_changed_by_other_surgery_too():
    made = train(algorithms=[LayerStacking(2, grow=f"{GROWS}ba"), StochasticDepth(["Block"], drop_rate=0.5)])
    assert [layer.rate for layer in made.state.model.layers] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert [type(layer) for layer in made.state.model.layers] == [StochasticBlock] * 5


def test_a_run_can_begin_with_the_weights_of_one_that_has_grown(tmp_path):
    train(callbacks=[CheckpointSaver(tmp_path, interval="1ep")])
    again = train(load_path=tmp_path, load_weights_only=True, max_duration="1ba")
    assert len(again.state.model.layers) == 5


def test_a_training_that_ends_before_it_grows_says_so():
    with pytest.warns(UserWarning, match=r"before grow='4ba', so 'layers' has 2 of its 5 blocks: set an earlier grow"):
        train(max_duration="3ba")


def test_a_model_without_a_stack_is_trained_as_it_is():
    with pytest.warns(NothingReplacedWarning, match="layer_stacking changed nothing: the model has no nn.ModuleList"):
        run_init(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), LayerStacking())


def two_stacks():
    return nn.ModuleDict({name: nn.ModuleList(nn.Linear(2, 2) for _ in range(3)) for name in ("a", "b")})


def tied():
    model = Net()
    model.layers[3].inner[0].weight = model.layers[0].inner[0].weight
    return model


@pytest.mark.parametrize(
    ("make", "given", "said"),
    [
        (two_stacks, {}, r"'a' and 'b' are stacks of 3 equal blocks each: name one, blocks='a'"),
        (Net, {"blocks": "layer"}, r"blocks='layer' is not the name of an nn.ModuleList.*did you mean 'layers'"),
        (Net, {"blocks": "layers.0.inner"}, r"'layers.0.inner': its blocks are not equal: of '1', it is ReLU in place"),
        (Net, {"first": 5}, r"first=5, and 'layers' has 5 blocks: give a number from 1 to 4"),
        (tied, {}, r"layers.3.inner.0.weight is also layers.0.inner.0.weight, and .* shared"),
    ],
)
def test_what_can_not_be_stacked_is_refused_with_what_to_write(make, given, said):
    with pytest.raises(ArgumentError, match=said):
        run_init(make(), LayerStacking(**given))


def test_a_block_with_a_group_of_its_own_is_refused_and_nothing_is_changed():
    model = Net()
    groups = [{"params": [*block.parameters()], "lr": 0.1 / (i + 1)} for i, block in enumerate(model.layers)]
    optimizer = torch.optim.SGD(groups)
    with pytest.raises(ArgumentError, match=r"layers.2.norm.weight is in another group than layers.0.norm.weight"):
        Stack(model, first=2).shorten(optimizer)
    assert len(model.layers) == len([group for group in optimizer.param_groups if group["params"]]) == 5


@pytest.mark.parametrize(
    ("joining", "said"),
    [
        ({"layers.0": (Block(), "layers.1")}, "has 'layers.0' already"),
        (
            {"layers.5": (nn.Linear(2, 2), "layers.1")},
            "Linear for 'layers.5' can't be a copy of 'layers.1': it is Linear",
        ),
        ({"layers.5": (Block(), "layers.9")}, "no module 'layers.9'"),
        ({"blocks.5": (Block(), "layers.1")}, "no module 'blocks'"),
    ],
)
def test_what_can_not_join_is_refused(joining, said):
    with pytest.raises(ArgumentError, match=said):
        grow(Net(), joining)
