"""Random numbers: one seed, one run; and the engine itself never draws."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from engine_core.errors import ArgumentError
from engine_core.randomness import preserve_generators, seed_generators

from .parts import Memory, at, batches, net, rows, same, trainer


def streams() -> tuple[Any, ...]:
    """Return the states of the global generators."""
    return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()


def run(seed: int | None, noise: bool = False) -> tuple[Any, list[float]]:
    drawn: list[float] = []
    model = net(dropout=0.5)
    loader = DataLoader(TensorDataset(*rows(20)), batch_size=8, shuffle=True)
    note = at("batch_end", lambda state: drawn.extend([random.random(), np.random.random(), torch.rand(()).item()]))
    if noise:
        torch.rand(7)
    made = trainer(loader, model, max_duration="2ep", seed=seed, callbacks=note, eval_dataloader=batches(3))
    made.fit()
    return made, drawn


def test_two_runs_with_one_seed_are_bit_identical_in_torch_numpy_and_python() -> None:
    first, first_drawn = run(3)
    second, second_drawn = run(3, noise=True)
    assert same(_weights(first), _weights(second))
    assert first_drawn == second_drawn
    other, other_drawn = run(4)
    assert not same(_weights(first), _weights(other))
    assert not set(first_drawn) & set(other_drawn)


def _weights(made: Any) -> Any:
    return made.state.model.state_dict()


def test_without_a_seed_one_is_drawn_and_recorded_and_repeats_the_run() -> None:
    first, drawn = run(None)
    assert first.state.seed is not None
    second, again = run(first.state.seed)
    assert drawn == again and same(_weights(first), _weights(second))


def test_a_drawn_seed_comes_from_no_global_stream() -> None:
    seeds = set()
    for _ in range(3):
        seed_generators(0)
        seeds.add(trainer().state.seed)
    assert len(seeds) == 3


def test_the_seed_is_logged() -> None:
    memory = Memory()
    trainer(seed=5, loggers=memory)
    assert memory.hyperparameters[0]["seed"] == 5


def test_the_engine_never_draws_from_the_global_streams() -> None:
    """Not with a progress bar, not with names of its own making, not in fit, eval or close."""
    seed_generators(9)
    before = streams()
    made = trainer(
        batches(8, 5),
        max_duration="2ep",
        seed=9,
        run_name=None,
        progress_bar=True,
        microbatch_size=3,
        eval_dataloader=batches(3),
        eval_interval="1ba",
        loggers=Memory(),
    )
    made.fit()
    made.eval()
    made.close()
    assert streams() == before


def test_a_plugins_own_seed_depends_on_the_run_and_its_name() -> None:
    seeds = {trainer(seed=seed).state.derive_seed(name) for seed in (1, 2) for name in ("mixup", "cutmix")}
    assert len(seeds) == 4
    assert trainer(seed=1).state.derive_seed("mixup") in seeds


def test_generators_are_put_back_after_an_exception() -> None:
    before = streams()

    def fail() -> None:
        with preserve_generators(torch.device("cpu")):
            seed_generators(77)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert streams() == before


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_the_smallest_and_the_largest_seed_work(seed: int) -> None:
    assert trainer(seed=seed).state.seed == seed


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, "3", True])
def test_anything_but_a_seed_is_refused(seed: Any) -> None:
    with pytest.raises(ArgumentError) as error:
        trainer(seed=seed)
    assert str(error.value) == f"seed has to be an int from 0 to 2**63 - 1 or None, not {seed!r}"
