"""The rates of stochastic depth grow from 0: literal rates, resumed runs, loops without a Trainer."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from parts import at, batches, trainer
from torch import nn

from engine_core import Callback, Engine, Event, Logger, State, Time, Trainer
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from surgery_plugin import StochasticBlock, StochasticDepth, apply_stochastic_depth, scale_drop_rates


class BasicBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(x)


def make_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(BasicBlock(), BasicBlock(), nn.Linear(4, 3))


class Rates(Callback):
    """The rates at which the blocks are dropped in each forward pass."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def after_forward(self, state: Any, logger: Logger) -> None:
        blocks = [module for module in state.model.modules() if isinstance(module, StochasticBlock)]
        self.seen.append([round(block.rate * block.draws.share, 10) for block in blocks])


def make_trainer(algorithm: StochasticDepth, *callbacks: Any, **settings: Any) -> Trainer:
    given = {"algorithms": algorithm, "callbacks": callbacks, "max_duration": "2ep", "seed": 1, **settings}
    made: Trainer = trainer(batches(8, 8, 8, 8), make_model(), **given)
    return made


@pytest.mark.parametrize(
    ("warmup", "last"),
    [
        ("4ba", [0, 0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4]),
        ("0.5dur", [0, 0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4]),
        (Time("32sp"), [0, 0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4]),
        ("1dur", [0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35]),
        ("0dur", [0.4] * 8),
    ],
    ids=str,
)
def test_the_rates_grow_linearly_from_0_over_the_warm_up(warmup: Any, last: list[float]) -> None:
    """The last of two blocks; the first has half its rate. 2 epochs of 4 batches of 8 samples."""
    recorder = Rates()
    with make_trainer(StochasticDepth(drop_rate=0.4, drop_warmup=warmup), recorder) as run:
        run.fit()
    assert recorder.seen == [[round(rate / 2, 10), rate] for rate in last]


@pytest.mark.parametrize("per", ["sample", "batch"])
def test_the_share_is_applied_to_the_draws_and_to_what_is_divided_by(per: str) -> None:
    """At 0 the block computes as it would alone; at a half it is dropped and scaled at half its rate."""
    model, x = nn.Sequential(BasicBlock()), torch.randn(64, 4)
    block = copy.deepcopy(model[0])
    apply_stochastic_depth(model, drop_rate=0.8, drop_per=per, generator=torch.Generator().manual_seed(3))
    scale_drop_rates(model, 0)
    assert all(torch.equal(model(x), block(x)) for _ in range(8))
    scale_drop_rates(model, 0.5)
    halved = nn.Sequential(copy.deepcopy(block))
    apply_stochastic_depth(halved, drop_rate=0.4, drop_per=per)
    halved[0].draws.generator.set_state(model[0].draws.generator.get_state())
    assert all(torch.equal(model(x), halved(x)) for _ in range(8))


@pytest.mark.parametrize("stop", [1, 4, 6])
def test_a_run_that_is_resumed_on_the_way_is_the_uninterrupted_one(tmp_path: Path, stop: int) -> None:
    def train(folder: str, *callbacks: Any, **settings: Any) -> tuple[Any, list[list[float]]]:
        recorder, saver = Rates(), CheckpointSaver(tmp_path / folder, interval="100ep")
        algorithm = StochasticDepth(drop_rate=0.6, drop_warmup="6ba")
        with make_trainer(algorithm, recorder, saver, *callbacks, **settings) as run:
            run.fit()
        return run.state.model, recorder.seen

    pause = at("batch_end", lambda state: state.timestamp.batch == stop and state.pause_training())
    whole, expected = train("whole")
    _, first = train("parts", pause)
    resumed, second = train("parts", load_path=tmp_path / "parts")
    assert first + second == expected
    assert all(torch.equal(one, two) for one, two in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_a_copy_of_the_model_keeps_the_share_of_that_moment() -> None:
    model = make_model()
    state = State(model=model, algorithms=[StochasticDepth(drop_rate=0.4, drop_warmup="4ba")], seed=3)
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.INIT)
    state.timestamp = state.timestamp.to_next_batch()
    other = copy.deepcopy(model)
    state.timestamp = state.timestamp.to_next_batch()
    model(torch.randn(2, 4))
    assert [model[1].draws.share, other[1].draws.share] == [0.5, 0.25]


def test_a_fraction_of_a_training_of_unknown_length_is_refused_with_the_first_batch() -> None:
    state = State(model=make_model(), algorithms=[StochasticDepth(drop_warmup="0.5dur")], batch=batches(8)[0])
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.INIT)
        with pytest.raises(ValueError, match=r"max_duration is not known, so '0\.5dur' can't be located"):
            engine.run_event(Event.AFTER_DATALOADER)


def test_a_length_that_only_fit_knows_is_enough() -> None:
    recorder = Rates()
    algorithm = StochasticDepth(drop_rate=0.4, drop_warmup="0.5dur")
    with make_trainer(algorithm, recorder, max_duration=None) as run:
        run.fit("4ba")
    assert [seen[1] for seen in recorder.seen] == [0, 0.2, 0.4, 0.4]


@pytest.mark.parametrize(
    ("warmup", "message"),
    [
        ("-1ba", "drop_warmup='-1ba' has to be within the training"),
        ("1.5dur", "drop_warmup='1.5dur' has to be within the training"),
        (0.5, "drop_warmup: a bare number has no unit"),
    ],
    ids=str,
)
def test_impossible_lengths_are_refused(warmup: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        StochasticDepth(drop_warmup=warmup)


@pytest.mark.parametrize(("share", "error"), [(1.1, ValueError), (-0.1, ValueError), ("1", TypeError)], ids=str)
def test_impossible_shares_are_refused(share: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"share="):
        scale_drop_rates(make_model(), share)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, where it imports the compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # and where it looks at one
def test_compiled_the_warm_up_computes_the_same() -> None:
    models, x = (make_model(), make_model()), torch.randn(8, 4)
    states = [State(model=m, algorithms=[StochasticDepth(drop_rate=0.5, drop_warmup="4ba")], seed=3) for m in models]
    outs: list[list[torch.Tensor]] = [[], []]
    for state, seen in zip(states, outs, strict=True):
        with Engine(state, Logger()) as engine:
            engine.run_event(Event.INIT)
        torch.compiler.reset()
        model = torch.compile(state.model, backend="eager") if state is states[1] else state.model
        for _ in range(12):
            seen.append(model(x))  # type: ignore[operator,misc]
            state.timestamp = state.timestamp.to_next_batch()
    torch.compiler.reset()
    assert all(torch.equal(one, two) for one, two in zip(*outs, strict=True))
