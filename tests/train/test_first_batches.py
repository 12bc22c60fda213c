"""A loader that each rank reads in full has to give all of them the same: its first batch tells."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import data as torch_data

from engine_core import State
from engine_core.errors import EngineError
from engine_core.testing import ThreadRanks
from engine_core.trainer.data import Feed, deal

CPU = torch.device("cpu")
ROWS = torch_data.TensorDataset(torch.arange(6))


class Order(torch_data.Sampler[int]):
    """An order of a sampler's own, drawn from a generator that the engine can't find."""

    def __init__(self, seed: int) -> None:
        self.drawn = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Any:
        return iter(torch.randperm(6, generator=self.drawn).tolist())

    def __len__(self) -> int:
        return 6


def rows_of(make: Any, label: str, *, is_local: bool = False) -> list[Any]:
    """Return the rows that each of two ranks gets of its loader in training, or in an evaluation."""

    def program(ranks: Any) -> Any:
        loader = make(ranks.rank)
        state = State(train_dataloader=loader, seed=1, rank=ranks.rank, world_size=ranks.size, ranks=ranks)
        state.dataloader_label = label
        feed = Feed(state, CPU, is_local=is_local)
        batches = (
            feed.start_epoch()
            if label == "train"
            else (part for part, _ in deal(loader, state, CPU, is_local=is_local))
        )
        return [part[0].tolist() for part in batches]

    return ThreadRanks.run(program)


def ordered(seed: int) -> Any:
    return torch_data.DataLoader(ROWS, batch_size=4, sampler=Order(seed))


@pytest.mark.parametrize("label", ["train", "eval"])
def test_another_order_on_another_rank_is_refused_with_what_to_do(label):
    said = rf"'{label}'.*the first batch of rank 1 is not that of rank 0.*a seed that all ranks share.*data='local'"
    with pytest.raises(EngineError, match=said):
        rows_of(ordered, label)


@pytest.mark.parametrize("label", ["train", "eval"])
def test_one_seed_deals_every_row_once(label):
    rows = rows_of(lambda _: ordered(3), label)
    assert sorted(row for of_rank in rows for part in of_rank for row in part) == [*range(6)]


def test_loaders_of_a_ranks_own_rows_may_differ():
    assert rows_of(lambda rank: [(torch.full((2,), rank),)], "train", is_local=True) == [[[0, 0]], [[1, 1]]]


def test_what_is_not_a_tensor_or_plain_is_not_compared_and_words_are():
    numbers = torch.arange(4)
    assert rows_of(lambda _: [(numbers, object())], "train") == [[[0, 1]], [[2, 3]]]
    with pytest.raises(EngineError, match="the first batch of rank 1 is not"):
        rows_of(lambda rank: [(numbers, [f"{row + rank}" for row in range(4)])], "train")


def test_a_first_batch_drawn_from_the_global_generators_is_that_of_rank_0():
    class Drawn:
        def __iter__(self) -> Any:
            yield (torch.rand(4),)

    def make(rank: int) -> Any:
        torch.manual_seed(rank)
        return Drawn()

    first, second = rows_of(make, "train")
    torch.manual_seed(0)
    assert first[0] + second[0] == torch.rand(4).tolist()
