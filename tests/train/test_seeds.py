"""Random numbers: one seed, one run; and the engine itself never draws."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from engine_core import Algorithm, State
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.randomness import OwnGenerator, private_unless, seed_generators

from .parts import Memory, at, batches, net, rows, same, trainer


def streams():
    """Return the states of the global generators."""
    return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()


def run(seed, noise=False):
    drawn = []
    model = net(dropout=0.5)
    loader = DataLoader(TensorDataset(*rows(20)), batch_size=8, shuffle=True)
    note = at("batch_end", lambda state: drawn.extend([random.random(), np.random.random(), torch.rand(()).item()]))
    if noise:
        torch.rand(7)
    made = trainer(loader, model, max_duration="2ep", seed=seed, callbacks=note, eval_dataloader=batches(3))
    made.fit()
    return made, drawn


def test_two_runs_with_one_seed_are_bit_identical_in_torch_numpy_and_python():
    first, first_drawn = run(3)
    second, second_drawn = run(3, noise=True)
    assert same(_weights(first), _weights(second))
    assert first_drawn == second_drawn
    other, other_drawn = run(4)
    assert not same(_weights(first), _weights(other))
    assert not set(first_drawn) & set(other_drawn)
    unseeded, drawn = run(None)  # a seed is drawn and recorded
    again, drawn_again = run(unseeded.state.seed)
    assert drawn == drawn_again and same(_weights(unseeded), _weights(again))


def _weights(made):
    return made.state.model.state_dict()


def test_what_is_drawn_between_making_a_trainer_and_fit_does_not_matter():
    models = []
    for disturbs in (False, True):
        made = trainer(DataLoader(TensorDataset(*rows(32)), 8, shuffle=True), seed=3)
        if disturbs:
            trainer(seed=9)
            torch.rand(5)
        made.fit()
        models.append(_weights(made))
    assert same(*models)


def test_a_drawn_seed_comes_from_no_global_stream():
    seeds = set()
    for _ in range(3):
        seed_generators(0)
        seeds.add(trainer().state.seed)
    assert len(seeds) == 3


def test_the_engine_never_draws_from_the_global_streams():
    """Not with a progress bar, not with names of its own making, not in fit, eval or close."""
    seed_generators(9)
    before = streams()
    logged = {"run_name": None, "progress_bar": True, "loggers": Memory()}
    evaluated = {"eval_dataloader": batches(3), "eval_interval": "1ba"}
    made = trainer(batches(8, 5), max_duration="2ep", seed=9, microbatch_size=3, **logged, **evaluated)
    made.fit()
    made.eval()
    made.close()
    assert streams() == before


def test_the_smallest_and_the_largest_seed_work_and_anything_else_is_refused():
    for seed in (0, 2**63 - 1):
        assert trainer(seed=seed).state.seed == seed
    for seed in (-1, 2**63, 1.5, "3", True):
        with pytest.raises(
            ArgumentError, match=rf"^seed has to be an int from 0 to 2\*\*63 - 1 or None, not {seed!r}$"
        ):
            trainer(seed=seed)


def drawn(own, state, count=3):
    return torch.rand(count, generator=own.of(state)).tolist()


def test_it_begins_with_the_seed_of_the_run_and_the_name():
    state = State(seed=5)
    expected = torch.rand(3, generator=torch.Generator().manual_seed(state.derive_seed("noise"))).tolist()
    assert drawn(OwnGenerator("noise"), state) == expected


def test_a_seed_of_its_own_takes_the_place_of_the_runs():
    one, other = (drawn(OwnGenerator("noise", 9), State(seed=seed)) for seed in (5, 6))
    assert one == other == drawn(OwnGenerator("noise"), State(seed=9))
    assert one != drawn(OwnGenerator("noise"), State(seed=5))


def test_all_ranks_draw_the_same_numbers_unless_each_is_to_draw_its_own():
    ranks = [State(seed=5, rank=rank) for rank in (0, 1)]
    one, other = (drawn(OwnGenerator("noise"), state) for state in ranks)
    assert one == other
    own, others = (drawn(OwnGenerator("noise", shared=False), state) for state in ranks)
    assert own == one != others


def test_what_is_saved_is_a_tensor_and_a_loaded_one_continues_there():
    own, state = OwnGenerator("noise"), State(seed=5)
    before = own.state_dict()
    first = drawn(own, state)
    saved = own.state_dict()
    assert [(name, value.dtype) for name, value in saved.items()] == [("generator", torch.uint8)]
    expected = drawn(own, state)

    waiting = OwnGenerator("noise")
    waiting.load_state_dict(saved)
    assert torch.equal(waiting.state_dict()["generator"], saved["generator"])
    assert drawn(waiting, State(seed=6)) == expected

    own.load_state_dict(saved)
    assert drawn(own, state) == expected
    own.load_state_dict(before)  # from before the first draw
    assert own.state_dict() == {}
    assert drawn(own, state) == first


def test_in_another_run_it_begins_again_also_after_the_run_that_a_loaded_one_was_for():
    own, before = OwnGenerator("noise"), torch.get_rng_state()
    first = drawn(own, State(seed=5))
    assert drawn(own, State(seed=5)) == first != drawn(OwnGenerator("mask"), State(seed=5))
    own.load_state_dict({"generator": torch.Generator().manual_seed(1).get_state()})
    assert drawn(own, State(seed=5)) != first == drawn(own, State(seed=5))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_ranks_own_numbers_are_continued_on_that_rank_and_another_one_begins_with_the_seed():
    ranks, saved, rest = [State(seed=5, rank=rank) for rank in (0, 1)], [], []
    for state in ranks:
        own = OwnGenerator("noise", shared=False)
        begun = drawn(own, state)
        saved.append(own.state_dict())
        rest.append((begun, drawn(own, state)))
    for rank, state in enumerate(ranks):
        for other in (0, 1):
            own = OwnGenerator("noise", shared=False)
            own.load_state_dict(saved[other])
            assert drawn(own, State(seed=5, rank=state.rank)) == rest[rank][other == rank]


class Noisy(Algorithm):
    def __init__(self):
        self.own = OwnGenerator("noise")

    match = apply = None


class Noisier(Noisy):
    """Has numbers of its own class."""


def test_each_instance_of_a_class_in_a_run_draws_other_numbers():
    algorithms = [Noisy(), Noisier(), Noisy(), Noisy()]
    state = State(seed=5, algorithms=algorithms)
    first, other, second, third = (torch.rand(3, generator=a.own.of(state, a)).tolist() for a in algorithms)
    assert first == other == drawn(OwnGenerator("noise"), State(seed=5))
    assert [second, third] == [drawn(OwnGenerator(f"noise-{n}"), State(seed=5)) for n in (2, 3)]


@pytest.mark.parametrize("broken", ["x", None, torch.zeros(3), torch.zeros(3, dtype=torch.uint8)])
def test_a_state_that_is_not_a_generators_is_refused_at_once(broken):
    own, state = OwnGenerator("noise"), State(seed=5)
    drawn(own, state)
    saved = own.state_dict()
    with pytest.raises(ArgumentError, match=r"^the state of noise has an invalid 'generator': "):
        own.load_state_dict({"generator": broken})
    with pytest.raises(ArgumentError, match=r"^the state of noise has no 'generator', only 'step'$"):
        own.load_state_dict({"step": 3})
    assert torch.equal(own.state_dict()["generator"], saved["generator"])


@pytest.mark.parametrize(("given", "remedy"), [(3, r"None: torch.Generator\(\).manual_seed\(3\)$"), ("cpu", "None$")])
def test_without_a_generator_there_is_a_new_one_each_time_and_anything_but_a_generator_is_refused(given, remedy):
    drawn = [torch.rand(4, generator=private_unless(None)).tolist() for _ in range(3)]
    assert drawn[0] != drawn[1] != drawn[2]
    with pytest.raises(ArgumentTypeError, match=f"^generator={given!r} .* has to be a torch.Generator or {remedy}"):
        private_unless(given)
