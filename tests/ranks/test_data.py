"""Each rank trains on its rows of the global batch, whatever the loader is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_core.parallel import bounds
from engine_core.ranks import Ranks

from . import data
from .starting import start

pytestmark = [pytest.mark.ranks, pytest.mark.full]

LOCAL = ("local", "a distributed sampler")


@pytest.fixture(scope="module", params=[2, 3], ids="{} ranks".format)
def found(request: pytest.FixtureRequest) -> Any:
    ended = start(Path(data.__file__), request.param)
    assert ended.rc == 0, ended.output
    return ended.written


@pytest.mark.parametrize("case", [name for name in data.cases(Ranks()) if name not in LOCAL])
def test_the_ranks_together_have_the_batches_of_one_process_in_contiguous_parts(found: Any, case: str) -> None:
    alone = data.seen(data.cases(Ranks())[case])
    ranks = found[case]
    assert [[row for part in parts for row in part] for parts in zip(*(r["rows"] for r in ranks), strict=True)] == (
        alone["rows"]
    )
    for number, rank in enumerate(ranks):
        some = Ranks()
        some.rank, some.size = number, len(ranks)
        ends = [bounds(len(batch), some) for batch in alone["rows"]]
        assert [len(rows) for rows in rank["rows"]] == [stop - start for start, stop in ends]
        assert (rank["clock"], rank["samples"]) == (alone["clock"], alone["samples"])
        assert rank["warnings"] == alone["warnings"] == []


@pytest.mark.parametrize("case", ["in order", "shuffled", "without the last", "weighted", "fewer rows than ranks"])
def test_no_rank_reads_the_rows_of_another_but_the_first_as_a_placeholder(found: Any, case: str) -> None:
    for rank in found[case]:
        own = [row for rows in rank["rows"] for row in rows]
        placeholders = sum(not rows for rows in rank["rows"])
        assert len(rank["read"]) == len(own) + placeholders


def test_the_workers_of_each_rank_draw_other_numbers_and_those_of_rank_0_what_one_process_draws(found: Any) -> None:
    first, *others = (rank["inputs"] for rank in found["workers that draw"])
    alone = data.seen(data.cases(Ranks())["workers that draw"])["inputs"]
    assert first == alone[: len(first)]
    assert not any(row in alone or row in first for rank in others for row in rank)


def test_a_local_loader_is_taken_as_it_is_and_ends_for_all_where_it_ends_for_one(found: Any) -> None:
    ranks = found["local"]
    shortest = 4 - (len(ranks) - 1)
    assert [rank["rows"] for rank in ranks] == [[[i + 10 * r] for i in range(shortest)] * 2 for r in range(len(ranks))]
    assert {rank["clock"][2] for rank in ranks} == {2 * shortest * len(ranks)}
    assert [len(rank["warnings"]) for rank in ranks] == [2] + [0] * (len(ranks) - 1)
    assert f"on rank {len(ranks) - 1}, and not on the others" in ranks[0]["warnings"][0]


def test_a_distributed_sampler_deals_by_itself(found: Any) -> None:
    ranks = found["a distributed sampler"]
    assert sorted({row for rank in ranks for rows in rank["rows"] for row in rows}) == list(range(data.ROWS))
