"""The fake ranks: threads that tell each other what processes would, and say where processes would wait forever."""

import time

import pytest
import torch

from engine_core.errors import EngineError
from engine_core.ranks import Ranks
from engine_core.testing import ThreadRanks


def of(ranks):
    rows = torch.full((ranks.rank, 2), float(ranks.rank))  # none on rank 0
    whole, own = ranks.gather(rows)
    return (
        whole.tolist(),
        (own.start, own.stop),
        ranks.table([ranks.rank, 0.5]),
        ranks.sum(ranks.rank),
        ranks.any(ranks.rank == 2),
        ranks.first(f"rank {ranks.rank}"),
        ranks.each([ranks.rank]),
    )


def test_each_rank_gets_what_all_have_put_down():
    whole, table = [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]], [[0.0, 0.5], [1.0, 0.5], [2.0, 0.5]]
    same = (table, 3.0, True, "rank 0", [[0], [1], [2]])
    assert ThreadRanks.run(of, 3) == [(whole, (0, 0), *same), (whole, (0, 1), *same), (whole, (1, 3), *same)]


def test_one_thread_is_one_process():
    assert ThreadRanks.run(of, 1) == [of(Ranks())]


def test_ranks_may_meet_often():
    assert (
        ThreadRanks.run(lambda ranks: [ranks.sum(number) for number in range(200)], 4)
        == [[4.0 * n for n in range(200)]] * 4
    )


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        (lambda ranks: ranks.rank or ranks.sum(1), "rank 0 calls table, rank 1 has ended"),
        (lambda ranks: ranks.each(1) if ranks.rank else ranks.sum(1), "rank 0 calls table, rank 1 calls each"),
    ],
)
def test_a_call_that_only_some_ranks_make_is_an_error_at_once(program, problem):
    with pytest.raises(EngineError, match=problem):
        ThreadRanks.run(program)


def test_what_a_rank_raises_is_raised_as_it_is():
    with pytest.raises(ZeroDivisionError):
        ThreadRanks.run(lambda ranks: ranks.sum(1 / (1 - ranks.rank)))


def test_a_rank_that_hangs_is_named():
    with pytest.raises(EngineError, match=r"rank 0 has waited 0\.1 s in table"):
        ThreadRanks.run(lambda ranks: time.sleep(0.5) if ranks.rank else ranks.sum(1), timeout_s=0.1)


def test_ranks_take_turns_and_each_draws_as_a_process_of_its_own():
    seen = []

    def program(ranks):
        torch.manual_seed(3)
        drawn = [torch.rand(()).item()]
        for _ in range(2):
            seen.append(ranks.rank)
            ranks.sum(1)
            drawn.append(torch.rand(()).item())
        return drawn

    before = torch.get_rng_state()
    one, other = ThreadRanks.run(program)

    assert seen == [0, 1, 0, 1]
    assert one == other
    assert torch.equal(torch.get_rng_state(), before)
