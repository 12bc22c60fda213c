"""All ranks have to read the same data, by index: lengths, splits, row 0 and the first indices tell."""

import time

import pytest
import torch
from torch.utils import data as torch_data

from engine_core import Batches, State
from engine_core.errors import ArgumentError, EngineError
from engine_core.run.dry_run import one_batch
from engine_core.trainer.feed import Feed, deal
from engine_core.trainer.loaders import extent_of
from engine_core_author import ThreadRanks

from .parts import trainer

CPU, STRICT = torch.device("cpu"), Batches()
ROWS = torch_data.TensorDataset(torch.arange(6))


class Order(list):
    """An order of a sampler's own, drawn from a generator that the engine can't find."""

    def __init__(self, seed):
        super().__init__(range(6))
        self.drawn = [torch.Generator().manual_seed(seed)]

    def __iter__(self):
        return iter(torch.randperm(6, generator=self.drawn[0]).tolist())


def rows_of(make, label, *, is_local=False, batches=STRICT):
    """Return the rows that each of two ranks gets of its loader in training, or in an evaluation."""

    def program(ranks):
        loader = make(ranks.rank)
        alike = {"rank": ranks.rank, "world_size": ranks.size, "ranks": ranks, "batches": batches}
        state = State(train_dataloader=loader, seed=1, **alike)
        state.dataloader_label = label
        feed = Feed(state, CPU, is_local=is_local)
        evaluated = (part for part, _ in deal(loader, state, CPU, is_local=is_local))
        return [part[0].tolist() for part in (feed.start_epoch() if label == "train" else evaluated)]

    return ThreadRanks.run(program)


@pytest.mark.parametrize("label", ["train", "eval"])
def test_another_order_on_another_rank_is_refused_with_what_to_do(label):
    said = r"BatchSampler.* draws other rows on rank 1 than on rank 0: .*a seed that all ranks share, .*data='local'"
    with pytest.raises(EngineError, match=said):
        rows_of(lambda rank: torch_data.DataLoader(ROWS, batch_size=4, sampler=Order(rank)), label)


def test_what_is_not_a_tensor_or_plain_is_not_compared_and_words_are():
    numbers = torch.arange(4)
    assert rows_of(lambda _: [(numbers, object())], "train", batches=Batches(shared=(1,))) == [[[0, 1]], [[2, 3]]]
    with pytest.raises(EngineError, match="row 0 of the dataset of rank 1 is not"):
        rows_of(lambda rank: [(numbers, [f"{row + rank}" for row in range(4)])], "eval")


def seeded(rank):
    return torch.Generator().manual_seed(rank)


def sampled(rank):
    return loaded(ROWS, sampler=torch_data.DistributedSampler(ROWS, 2, rank, shuffle=False))


class Positioned(torch_data.DataLoader):
    """Has a position of its own, as torchdata's StatefulDataLoader has."""

    state_dict = load_state_dict = None

    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        vars(self).update(state_dict=dict, load_state_dict=print)


class Stream(torch_data.IterableDataset):
    def __iter__(self):
        return iter(range(4))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda _: iter([1]), "a list_iterator"),
        (lambda _: loaded(Stream()), "a DataLoader of an IterableDataset"),
        (lambda _: loaded(ROWS, batch_size=None), "a DataLoader with batch_size=None"),
        (sampled, "a DataLoader with a DistributedSampler"),
        (lambda _: Positioned(ROWS, batch_size=2), "a Positioned with a position of its own"),
    ],
)
def test_what_is_not_read_by_index_is_refused_with_two_ways_out(make, kind):
    assert_refused(make, rf", {kind}, can't be dealt to 2 ranks: give torch's DataLoader.*DDP\(data='local'\)\)")


def assert_refused(make, said):
    """Look at an evaluation, and at the start of a fit, whose model would fail at the first batch."""

    def fit(ranks):
        with trainer(make(ranks.rank), torch.nn.Linear(1, 1), parallel=ranks) as made:
            made.fit()

    for read in (lambda: rows_of(make, "eval"), lambda: ThreadRanks.run(fit)):
        with pytest.raises((ArgumentError, EngineError), match=said):
            read()


def split(rank):
    """Return a split that draws from another seed on each rank."""
    return torch_data.random_split(ROWS, [4, 2], generator=seeded(rank))[0]


def loaded(dataset, **how):
    return torch_data.DataLoader(dataset, **{"batch_size": 2, **how})


OF_RANK_1 = "the split of rank 1"
DIFFERENT = {
    "split": (lambda rank: loaded(split(rank)), f"{OF_RANK_1} is not that of rank 0.*seed before you split"),
    "joined": (lambda rank: loaded(torch_data.ConcatDataset([ROWS, split(rank)])), OF_RANK_1),
    "sampler": (lambda rank: loaded(ROWS, sampler=torch_data.SubsetRandomSampler(split(rank).indices)), OF_RANK_1),
    "a long split without one row": (lambda rank: loaded(torch_data.Subset(ROWS, long_split(rank))), OF_RANK_1),
    "fewer": (lambda rank: loaded(torch_data.Subset(ROWS, range(3 + rank))), "rows.*rank 0: 3, rank 1: 4"),
    "longer": (lambda rank: [(torch.arange(2),)] * (1 + rank), "batches: rank 0: 1, rank 1: 2"),
    "drawn": (lambda rank: loaded(drawn(rank)), "row 0 of the dataset of rank 1 is not.*seed before you make it"),
}


def long_split(rank):
    return [*range(5), *range(5 + rank, 5000 + rank)]


def drawn(rank):
    """Return rows that draw from another seed on each rank, with labels that are the same."""
    return torch_data.TensorDataset(torch.rand(6, generator=seeded(rank)), torch.zeros(6))


@pytest.mark.parametrize("name", DIFFERENT)
def test_loaders_that_read_other_rows_on_another_rank_are_refused(name):
    make, said = DIFFERENT[name]
    assert_refused(make, rf"{said}.*data='local'")


def test_a_long_split_takes_no_time_to_compare():
    loader, took_s = loaded(torch_data.Subset(ROWS, [*range(1_000_000)])), []
    for _ in range(3):
        started_s = time.perf_counter()
        extent_of(loader)
        took_s.append(time.perf_counter() - started_s)
    assert min(took_s) < 0.02


class Random(torch_data.TensorDataset):
    """Rows that are drawn when they are read, as augmented ones are."""

    def __getitem__(self, row):
        return torch.rand(())


class Own(torch_data.TensorDataset):
    """Rows made of tensors of which each rank has others."""

    def __getitem__(self, row):
        return ROWS[row]


@pytest.mark.parametrize("make", [lambda _: Random(torch.zeros(6)), lambda rank: Own(torch.full((6,), rank))])
def test_rows_that_may_differ_honestly_are_not_compared(make):
    first, second = rows_of(lambda rank: loaded(make(rank)), "eval")
    assert (len(first), len(second)) == (3, 3)


@pytest.mark.parametrize(
    ("make", "is_local"),
    [
        (sampled, True),
        (lambda rank: loaded(ROWS, shuffle=True, generator=seeded(rank)), False),
        (lambda _: [(ROWS[:3])] * 2, False),
    ],
)
def test_one_batch_of_a_loader_is_dealt_as_the_loader_is(make, is_local):
    found = rows_of(lambda rank: one_batch(make(rank)), "eval", is_local=is_local)
    assert found == [of_rank[:1] for of_rank in rows_of(make, "eval", is_local=is_local)]


def test_the_same_split_on_all_ranks_deals_each_row_once_and_local_ones_may_differ():
    chosen = sorted(split(0).indices)
    dealt = rows_of(lambda _: loaded(split(0), shuffle=True), "eval")
    assert sorted(row for of_rank in dealt for part in of_rank for row in part) == chosen
    own = rows_of(lambda rank: loaded(split(rank)), "eval", is_local=True)
    assert [[row for part in of_rank for row in part] for of_rank in own] == [split(0).indices, split(1).indices]
