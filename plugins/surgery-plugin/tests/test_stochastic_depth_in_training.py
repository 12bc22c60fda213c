"""StochasticDepth as an algorithm: seeds, resuming, a second run, and its effect on training on digits."""

import copy
from typing import Any

import pytest
import torch
from surgery_parts import digits, train_on_digits
from torch import nn
from torch.nn import functional as F

from engine_core import Engine, Event, Logger, State
from surgery_plugin import StochasticBlock, StochasticDepth


class BasicBlock(nn.Module):
    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, out)
        self.norm = nn.BatchNorm1d(out)
        self.keeps = size == out
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        out = F.relu(self.norm(self.linear(x)))
        return x + out if self.keeps else out


def make_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(BasicBlock(64, 32), BasicBlock(32, 32), BasicBlock(32, 32), nn.Linear(32, 10))


def init(model: nn.Module, algorithm: StochasticDepth, seed: int = 3, **settings: Any) -> State:
    state = State(model=model, algorithms=[algorithm], seed=seed, **settings)
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.INIT)
    return state


def test_the_seed_of_the_run_decides_on_the_draws_and_torch_is_not_used() -> None:
    outs, x = [], torch.randn(16, 64)
    for seed in (3, 3, 4):
        model = make_model()
        init(model, StochasticDepth(drop_rate=0.5), seed)
        before = torch.get_rng_state()
        outs.append(model(x))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


def test_a_second_run_on_the_same_model_draws_from_its_own_seed() -> None:
    model, fresh, x = make_model(), make_model(), torch.randn(16, 64)
    init(model, StochasticDepth(drop_rate=0.5), seed=8)
    init(model, StochasticDepth(drop_rate=0.5), seed=3)
    init(fresh, StochasticDepth(drop_rate=0.5), seed=3)
    assert torch.equal(model(x), fresh(x))


def test_the_model_of_an_earlier_run_continues_drawing_for_itself() -> None:
    model, algorithm, x = make_model(), StochasticDepth(drop_rate=0.5), torch.randn(16, 64)
    init(model, algorithm)
    other = copy.deepcopy(model)
    run = init(make_model(), algorithm, seed=4)
    assert torch.equal(model(x), other(x))
    assert run.seed == 4


def test_parameters_may_go_without_gradient_only_where_blocks_are_not_computed() -> None:
    assert StochasticDepth(drop_per="batch").find_unused_parameters is True
    assert StochasticDepth(drop_per="sample").find_unused_parameters is False


@pytest.mark.parametrize(
    ("first", "per"),
    [("the state, then init", "batch"), ("init, then the state", "sample"), ("another run first", "batch")],
)
def test_a_run_that_is_resumed_elsewhere_draws_and_computes_the_same(first, per) -> None:
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


def test_the_state_of_one_that_has_not_run_yet_begins_again() -> None:
    x, models, algorithms = torch.randn(16, 64), (make_model(), make_model()), (StochasticDepth(), StochasticDepth())
    algorithms[0].load_state_dict(StochasticDepth().state_dict())
    for model, algorithm in zip(models, algorithms, strict=True):
        init(model, algorithm)
    assert torch.equal(models[0](x), models[1](x))


def train(algorithms: list[Any]) -> tuple[nn.Sequential, float]:
    """Return the net after 80 steps, and its loss."""
    model, (images, targets) = make_model(), digits()
    flat = images.flatten(1), targets
    train_on_digits(model, algorithms, images=flat, max_duration="4ep")
    with torch.no_grad():
        return model, F.cross_entropy(model.eval()(flat[0][:1200]), targets[:1200]).item()


def test_on_digits_the_last_block_computes_as_rarely_as_its_rate_says_and_the_net_learns() -> None:
    """80 steps: with L = 3 and a rate of 0.6 the blocks compute in 80, 60 % and 40 % of them, but for the first one."""
    model, loss = train([StochasticDepth(drop_rate=0.6, drop_per="batch")])
    blocks = [model[place].block for place in range(3)]
    assert blocks[0].calls == 80  # it has no identity
    assert 35 <= blocks[1].calls <= 61  # 48 and three standard deviations
    assert 19 <= blocks[2].calls <= 46  # 32
    assert loss < 0.5


def test_on_digits_with_one_draw_per_sample_all_blocks_compute_and_the_training_differs() -> None:
    model, loss = train([StochasticDepth(drop_rate=0.6)])
    _, plain = train([])
    assert all(isinstance(block, StochasticBlock) for block in model[:3])
    assert [block.block.calls for block in model[:3]] == [80, 80, 80]
    assert plain < loss < 0.5  # noise costs loss on what was trained on
