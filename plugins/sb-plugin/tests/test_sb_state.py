"""What SelectiveBackprop draws, saves and takes back."""

from typing import Any

import pytest
import torch
from torch import nn

from engine_core.errors import ArgumentError
from sb_plugin import SelectiveBackprop

X, Y = torch.randn(8, 3, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 4
ALWAYS = {"start": 0, "end": 1, "scale_factor": 1, "interrupt": 0}


def net(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(*layers, nn.Linear(3, 4))


def ids(batch: Any) -> list[list[float]]:
    return [batch[0][:, 0].tolist(), batch[1].tolist()]


@pytest.fixture
def choices(engine_of: Any, pruned: Any) -> Any:
    """Return a function that gives the rows of six prunings."""

    def choose(algorithm: SelectiveBackprop, **fields: Any) -> list[Any]:
        engine = engine_of(algorithm, **fields)
        return [ids(pruned(engine)) for _ in range(6)]

    return choose


def test_rows_follow_from_the_seed_alone_and_with_scope_rank_from_the_rank_too(choices: Any) -> None:
    instance = SelectiveBackprop(**ALWAYS)
    first = choices(instance)
    torch.rand(3)
    assert choices(instance) == choices(SelectiveBackprop(**ALWAYS)) == first
    assert choices(SelectiveBackprop(**ALWAYS), seed=8) != first
    assert choices(SelectiveBackprop(**ALWAYS), rank=1, world_size=2) == first
    assert choices(SelectiveBackprop(**ALWAYS, scope="rank"), rank=1, world_size=2) != first


def test_it_draws_nothing_from_the_global_generator(engine_of: Any, pruned: Any) -> None:
    engine = engine_of(SelectiveBackprop(**ALWAYS), model=net(nn.Dropout()))
    before = torch.get_rng_state()
    pruned(engine)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_resumed_run_draws_what_the_uninterrupted_one_would(engine_of: Any, pruned: Any) -> None:
    engine = engine_of(SelectiveBackprop(**ALWAYS), model=net(nn.Dropout()))
    pruned(engine)
    saved = engine.state.algorithms[0].state_dict()
    expected = [ids(pruned(engine)) for _ in range(4)]
    for load_first in (True, False):
        algorithm = SelectiveBackprop(**ALWAYS)
        if load_first:
            algorithm.load_state_dict(saved)
        resumed = engine_of(algorithm, model=net(nn.Dropout()))
        if not load_first:
            algorithm.load_state_dict(saved)
        assert [ids(pruned(resumed)) for _ in range(4)] == expected


def test_a_loaded_state_serves_one_run(choices: Any) -> None:
    first, algorithm = choices(SelectiveBackprop(**ALWAYS)), SelectiveBackprop(**ALWAYS)
    other = SelectiveBackprop(**ALWAYS)
    choices(other)
    algorithm.load_state_dict(other.state_dict())
    assert choices(algorithm) != first
    assert choices(algorithm) == first


def test_its_state_is_that_of_its_generator_and_a_count(engine_of: Any) -> None:
    algorithm = SelectiveBackprop(**ALWAYS)
    assert algorithm.state_dict() == {}
    engine_of(algorithm)
    kinds = {name: type(value) for name, value in algorithm.state_dict().items()}
    assert kinds == {"dropped": int, "scoring_s": float, "generator": torch.Tensor}


def test_a_saved_state_is_a_copy(engine_of: Any, pruned: Any) -> None:
    engine = engine_of(SelectiveBackprop(**ALWAYS))
    saved = engine.state.algorithms[0].state_dict()["generator"]
    before = saved.clone()
    pruned(engine)
    assert torch.equal(saved, before)


def test_a_state_that_waits_for_its_run_is_saved_again_as_it_is(engine_of: Any) -> None:
    first = engine_of(SelectiveBackprop(**ALWAYS)).state.algorithms[0].state_dict()
    waiting = SelectiveBackprop(**ALWAYS)
    waiting.load_state_dict(first)
    assert torch.equal(waiting.state_dict()["generator"], first["generator"])


def test_a_state_without_a_generator_is_refused_at_once_and_forgotten() -> None:
    algorithm = SelectiveBackprop(**ALWAYS)
    with pytest.raises(ArgumentError, match="no 'generator', only 'x'"):
        algorithm.load_state_dict({"x": 1})
    assert algorithm.state_dict() == {}


def test_two_in_one_run_draw_other_rows(engine_of: Any) -> None:
    first, second = SelectiveBackprop(**ALWAYS), SelectiveBackprop(**ALWAYS)
    engine_of(first, algorithms=[first, second])
    one, other = (algorithm.state_dict()["generator"] for algorithm in (first, second))
    assert not torch.equal(one, other)


def test_the_state_of_an_algorithm_that_never_ran_is_taken() -> None:
    algorithm = SelectiveBackprop(**ALWAYS)
    algorithm.load_state_dict(SelectiveBackprop(**ALWAYS).state_dict())
    assert algorithm.state_dict() == {}
