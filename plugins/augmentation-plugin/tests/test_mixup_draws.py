"""What MixUp and CutMix draw in a run: from their own generators, by the run's seed, and on from what was saved."""

import random
from typing import Any

import pytest
import torch
from torch import nn

from augmentation_plugin import CutMix, MixUp, cutmix_batch, mixup_batch
from augmentation_plugin.mixing import Mixing
from engine_core import Engine, Logger, State
from engine_core.errors import ArgumentError

IMAGES = torch.eye(5).view(5, 5, 1, 1).expand(5, 5, 16, 16).contiguous()


def mixes(algorithm: Any, steps: int, seed: int = 1, saved: Any = None, keep: Any = None) -> list[list[float]]:
    """Return the images after some steps; put what is saved after each into `keep`."""
    state = State(model=nn.Identity(), algorithms=[algorithm], seed=seed)
    seen = []
    with Engine(state, Logger()) as engine:
        engine.run_event("init")
        if saved is not None:
            algorithm.load_state_dict(saved)
        for _ in range(steps):
            state.batch = (IMAGES, torch.arange(5))
            for event in ("before_train_batch", "before_forward"):
                engine.run_event(event)
            seen.append(state.batch[0].mean((2, 3)).flatten().tolist())
            state.outputs = torch.zeros(5, 5)
            for event in ("after_forward", "before_loss", "after_loss", "after_train_batch"):
                engine.run_event(event)
            if keep is not None:
                keep.append(algorithm.state_dict())
    return seen


@pytest.fixture(params=[MixUp, CutMix])
def kind(request: pytest.FixtureRequest) -> type[Mixing]:
    return request.param


def test_a_resumed_run_draws_as_the_uninterrupted_one(kind: type[Mixing]) -> None:
    saved: list[Any] = []
    whole = mixes(kind(1.0), 6, keep=saved)
    assert mixes(kind(1.0), 4, saved=saved[1]) == whole[2:]
    assert mixes(kind(1.0), 1, saved=saved[4]) == whole[5:]


def test_draws_follow_the_seed_of_the_run_alone(kind: type[Mixing]) -> None:
    used = kind(1.0)
    first = mixes(used, 4)
    torch.manual_seed(99)
    random.seed(99)
    assert mixes(used, 4) == mixes(kind(1.0), 4) == first
    assert mixes(kind(1.0), 4, seed=2) != first


def test_the_two_draw_apart() -> None:
    mixup, cutmix = MixUp(1.0), CutMix(1.0)
    state = State(model=nn.Identity(), algorithms=[mixup, cutmix], seed=1)
    with Engine(state, Logger()) as engine:
        engine.run_event("before_train_batch")
        assert mixup._draw != cutmix._draw


def test_a_foreign_state_is_refused(kind: type[Mixing]) -> None:
    with pytest.raises(ArgumentError, match=f"the state of {kind.metadata.name} has no 'generator'"):
        kind().load_state_dict({"lambda": 0.5})


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, where it imports the compiler
def test_a_compiled_step_draws_again_each_time() -> None:
    def draws(function: Any) -> list[Any]:
        generator = torch.Generator().manual_seed(3)
        mixed = [function(IMAGES, torch.arange(5), generator=generator) for _ in range(3)]
        return [(float(lam), paired.tolist()) for _, paired, lam in mixed]

    compiled = draws(torch.compile(mixup_batch, backend="eager"))
    assert compiled == draws(mixup_batch)
    assert compiled[0] != compiled[1] != compiled[2]


@pytest.mark.parametrize("mix", [mixup_batch, cutmix_batch])
def test_a_seed_is_not_a_generator(mix: Any) -> None:
    with pytest.raises(TypeError, match=r"generator=3 \(int\) .*torch.Generator\(\).manual_seed\(3\)"):
        mix(IMAGES, torch.arange(5), generator=3)


def test_a_default_device_is_not_where_pairs_are_drawn() -> None:
    torch.set_default_device("meta")
    try:
        mixed = mixup_batch(IMAGES, torch.arange(5))
    finally:
        torch.set_default_device(None)
    assert mixed.input.device.type == "cpu"
