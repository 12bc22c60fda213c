"""All ranks have to read the same data: lengths and splits tell, and the first batch where each reads it in full."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import data as torch_data

from engine_core import State, Trainer
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
    remedy = r"a seed that all ranks share, and .*collate_fn.*data='local'"
    said = rf"'{label}'.*the first batch of rank 1 is not that of rank 0.*{remedy}"
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


def split(rank: int) -> Any:
    """Return a split that draws from another seed on each rank."""
    return torch_data.random_split(ROWS, [4, 2], generator=torch.Generator().manual_seed(rank))[0]


def loaded(dataset: Any, **how: Any) -> Any:
    return torch_data.DataLoader(dataset, batch_size=2, **how)


DIFFERENT = {
    "split": (lambda rank: loaded(split(rank)), "the split of rank 1 is not that of rank 0.*seed before you split"),
    "nested": (lambda rank: loaded(torch_data.Subset(split(rank), range(3))), "the split of rank 1"),
    "joined": (lambda rank: loaded(torch_data.ConcatDataset([ROWS, split(rank)])), "the split of rank 1"),
    "sampler": (
        lambda rank: loaded(ROWS, sampler=torch_data.SubsetRandomSampler(split(rank).indices)),
        "the split of rank 1",
    ),
    "fewer": (lambda rank: loaded(torch_data.Subset(ROWS, range(3 + rank))), "rows.*rank 0: 3, rank 1: 4"),
    "longer": (lambda rank: [(torch.arange(2),)] * (1 + rank), "batches: rank 0: 1, rank 1: 2"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_loaders_that_read_other_rows_on_another_rank_are_refused(name):
    make, said = DIFFERENT[name]

    def program(ranks: Any) -> None:
        fit_on(ranks, make(ranks.rank))

    for read in (lambda: rows_of(make, "eval"), lambda: ThreadRanks.run(program)):
        with pytest.raises(EngineError, match=rf"{said}.*data='local'"):
            read()


def fit_on(ranks: Any, loader: Any) -> None:
    """Begin to train a model that would fail at the first batch."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    how: Any = {"loss_fn": torch.nn.MSELoss(), "optimizers": optimizer, "device": "cpu", "progress_bar": False}
    with Trainer(model, loader, max_duration="1ep", parallel=ranks, **how) as trainer:
        trainer.fit()


def test_the_same_split_on_all_ranks_deals_each_row_once_and_local_ones_may_differ():
    chosen = sorted(split(0).indices)
    dealt = rows_of(lambda _: loaded(split(0), shuffle=True), "eval")
    assert sorted(row for of_rank in dealt for part in of_rank for row in part) == chosen
    own = rows_of(lambda rank: loaded(split(rank)), "eval", is_local=True)
    assert [[row for part in of_rank for row in part] for of_rank in own] == [split(0).indices, split(1).indices]
