"""An algorithm's own generator: where its numbers begin, what is saved, and that no other generator moves."""

import gc
import json

import pytest
import torch

from engine_core import Algorithm, State
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.randomness import OwnGenerator, private_unless


def drawn(own, state, count=3):
    return torch.rand(count, generator=own.of(state)).tolist()


def test_it_begins_with_the_seed_of_the_run_and_the_name():
    state = State(seed=5)
    expected = torch.rand(3, generator=torch.Generator().manual_seed(state.derive_seed("noise"))).tolist()
    assert drawn(OwnGenerator("noise"), state) == expected


def test_a_seed_of_its_own_takes_the_place_of_the_runs() -> None:
    one, other = (drawn(OwnGenerator("noise", 9), State(seed=seed)) for seed in (5, 6))
    assert one == other == drawn(OwnGenerator("noise"), State(seed=9))
    assert one != drawn(OwnGenerator("noise"), State(seed=5))


def test_another_name_draws_other_numbers():
    assert drawn(OwnGenerator("noise"), State(seed=5)) != drawn(OwnGenerator("mask"), State(seed=5))


def test_all_ranks_draw_the_same_numbers_unless_each_is_to_draw_its_own():
    ranks = [State(seed=5, rank=rank) for rank in (0, 1)]
    one, other = (drawn(OwnGenerator("noise"), state) for state in ranks)
    assert one == other
    own, others = (drawn(OwnGenerator("noise", shared=False), state) for state in ranks)
    assert own == one != others


def test_a_ranks_own_numbers_are_continued_on_that_rank_and_another_one_begins_with_the_seed():
    saved, ends = {}, {}
    for rank in (0, 1):
        own, state = OwnGenerator("noise", shared=False), State(seed=5, rank=rank)
        drawn(own, state)
        saved[rank], ends[rank] = own.state_dict(), drawn(own, state)
    assert [set(state) for state in saved.values()] == [{"generator"}, {"generator", "rank"}]

    def continued(rank, of):
        own = OwnGenerator("noise", shared=False)
        own.load_state_dict(saved[of])
        return drawn(own, State(seed=5, rank=rank))

    assert [continued(rank, rank) for rank in (0, 1)] == [ends[0], ends[1]]
    assert continued(1, of=0) == drawn(OwnGenerator("noise", shared=False), State(seed=5, rank=1))
    assert continued(0, of=1) == drawn(OwnGenerator("noise"), State(seed=5))


def test_within_a_run_it_continues_and_in_another_run_it_begins_again():
    own, state = OwnGenerator("noise"), State(seed=5)
    first, second = drawn(own, state), drawn(own, state)
    assert first != second
    assert drawn(own, State(seed=5)) == first


def test_a_run_whose_state_is_gone_is_not_taken_for_the_next_one():
    own = OwnGenerator("noise")
    first = drawn(own, State(seed=5))
    gc.collect()
    assert drawn(own, State(seed=5)) == first


def test_what_is_saved_is_a_tensor_and_a_loaded_one_continues_there():
    own, state = OwnGenerator("noise"), State(seed=5)
    drawn(own, state)
    saved = own.state_dict()
    assert [(name, value.dtype) for name, value in saved.items()] == [("generator", torch.uint8)]
    expected = drawn(own, state)

    waiting = OwnGenerator("noise")
    waiting.load_state_dict(saved)
    assert torch.equal(waiting.state_dict()["generator"], saved["generator"])
    assert drawn(waiting, State(seed=6)) == expected

    own.load_state_dict(saved)
    assert drawn(own, state) == expected


def test_an_instance_that_ran_before_continues_in_its_next_run_where_the_saved_one_was():
    own, saved_run = OwnGenerator("noise"), State(seed=5)
    drawn(own, saved_run)
    saved = own.state_dict()
    expected = drawn(own, saved_run)
    own.load_state_dict(saved)
    assert drawn(own, State(seed=9)) == expected


def test_a_loaded_state_is_for_one_run_only():
    own = OwnGenerator("noise")
    own.load_state_dict({"generator": torch.Generator().manual_seed(1).get_state()})
    resumed, anew = drawn(own, State(seed=5)), drawn(own, State(seed=5))
    assert resumed != anew
    assert anew == drawn(OwnGenerator("noise"), State(seed=5))


def test_what_was_saved_before_the_first_draw_begins_again():
    own, state = OwnGenerator("noise"), State(seed=5)
    before = own.state_dict()
    first = drawn(own, state)
    own.load_state_dict(before)
    assert own.state_dict() == {}
    assert drawn(own, state) == first


class Noisy(Algorithm):
    """Draws a number at each event."""

    def __init__(self):
        self.own = OwnGenerator("noise")

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        raise NotImplementedError


class Noisier(Noisy):
    """Has numbers of its own class."""


def test_each_instance_of_a_class_in_a_run_draws_other_numbers():
    algorithms = [Noisy(), Noisier(), Noisy(), Noisy()]
    state = State(seed=5, algorithms=algorithms)
    first, other, second, third = (torch.rand(3, generator=a.own.of(state, a)).tolist() for a in algorithms)
    assert first == other == drawn(OwnGenerator("noise"), State(seed=5))
    assert [second, third] == [drawn(OwnGenerator(f"noise-{n}"), State(seed=5)) for n in (2, 3)]


def test_an_owner_that_is_not_in_the_run_draws_as_the_first():
    outer = Noisy()
    numbers = torch.rand(3, generator=outer.own.of(State(seed=5, algorithms=[Noisy()]), outer)).tolist()
    assert numbers == drawn(OwnGenerator("noise"), State(seed=5))


@pytest.mark.parametrize("broken", ["x", None, torch.zeros(3), torch.zeros(3, dtype=torch.uint8)])
def test_a_state_that_is_not_a_generators_is_refused_at_once(broken):
    own, state = OwnGenerator("noise"), State(seed=5)
    drawn(own, state)
    saved = own.state_dict()
    with pytest.raises(ArgumentError, match=r"^the state of noise has an invalid 'generator': "):
        own.load_state_dict({"generator": broken})
    assert torch.equal(own.state_dict()["generator"], saved["generator"])


def test_before_a_run_there_is_nothing_to_save():
    assert json.dumps(OwnGenerator("noise").state_dict()) == "{}"


def test_the_state_of_something_else_is_refused():
    with pytest.raises(ArgumentError, match=r"^the state of noise has no 'generator', only 'step'$"):
        OwnGenerator("noise").load_state_dict({"step": 3})


def test_no_global_generator_moves():
    before = torch.get_rng_state()
    own = OwnGenerator("noise")
    drawn(own, State(seed=5))
    own.load_state_dict(own.state_dict())
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_generator_there_is_a_new_one_each_time():
    drawn = [torch.rand(4, generator=private_unless(None)).tolist() for _ in range(3)]
    assert drawn[0] != drawn[1] != drawn[2]


@pytest.mark.parametrize(("given", "remedy"), [(3, r"None: torch.Generator\(\).manual_seed\(3\)$"), ("cpu", "None$")])
def test_anything_but_a_generator_is_refused(given, remedy):
    with pytest.raises(ArgumentTypeError, match=f"^generator={given!r} .* has to be a torch.Generator or {remedy}"):
        private_unless(given)
